"""What nobody foresaw is one line, which says where it was."""

import logging

import pytest

from runnel.net.failures import log_failure

LOGGER = logging.getLogger("runnel.net")


def failed() -> ZeroDivisionError:
    try:
        raise ZeroDivisionError("two\nlines " + "x" * 1_000)
    except ZeroDivisionError as error:
        return error


def test_a_failure_is_one_line_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(LOGGER, "a request failed", failed())
    [line] = caplog.text.splitlines()
    assert "a request failed: ZeroDivisionError at net/test_failures.py:14: two lines xxx" in line
    assert len(line) < 500


def test_all_frames_are_told_where_somebody_looks_closely(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "runnel.net"):
        log_failure(LOGGER, "a request failed", failed())
    assert "Traceback" in caplog.text
