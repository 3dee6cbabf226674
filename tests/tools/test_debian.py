import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import debian


def test_what_is_installed_is_found() -> None:
    assert debian.lack("sh", "dash") is None


def test_without_the_right_to_install_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    problem = debian.lack("no-such-server", "no-such-package")
    assert problem == "no-such-server was not found: install it (Debian: apt-get install no-such-package)"


def test_elsewhere_than_on_debian_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "no-such-server was not found" in str(debian.lack("no-such-server", "x"))


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The whole PATH: an apt-get that fails while another one runs, and installs only after an update."""
    script = tmp_path / "apt-get"
    script.write_text(
        f"""#!/bin/sh
        PATH=/usr/bin:/bin
        mkdir {tmp_path}/busy || {{ echo "could not get lock" >&2; exit 100; }}
        for word; do last=$word; done
        echo "$last" >> {tmp_path}/asked
        sleep 0.2
        rmdir {tmp_path}/busy
        if [ "$last" = update ]; then touch {tmp_path}/lists; exit 0; fi
        [ -e {tmp_path}/lists ] || {{ echo "unable to locate package $last" >&2; exit 100; }}
        [ "$last" = unheard-of ] && {{ echo "no such package" >&2; exit 100; }}
        printf '#!/bin/sh\\n' > {tmp_path}/$last; chmod +x {tmp_path}/$last
        """
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(debian, "SBIN", str(tmp_path))
    monkeypatch.setattr(debian, "LOCKED", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_steps_of_a_set_up_that_run_side_by_side_install_one_after_the_other(apt: Path) -> None:
    wanted = ["one", "two", "three", "one"]
    with ThreadPoolExecutor(len(wanted)) as pool:
        assert list(pool.map(debian.lack, wanted, wanted)) == [None] * len(wanted)
    asked = (apt / "asked").read_text().split()
    assert sorted(asked) == sorted([asked[0], "update", "one", "two", "three"])


def test_what_apt_complains_of_is_told(apt: Path) -> None:
    problem = debian.lack("unheard-of", "unheard-of")
    assert problem == "unheard-of was not found, and apt-get install unheard-of failed: no such package"
