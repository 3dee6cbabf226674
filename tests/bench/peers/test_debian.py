import os
import shutil

import pytest

from bench.peers import debian


def test_what_is_installed_is_found() -> None:
    assert debian.lack("sh", "dash") is None


def test_without_the_right_to_install_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    problem = debian.lack("no-such-server", "no-such-package")
    assert problem == "no-such-server is not installed (Debian: apt-get install no-such-package)"


def test_elsewhere_than_on_debian_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "no-such-server is not installed" in str(debian.lack("no-such-server", "x"))
