"""The end of a fuzzing run: the number of its cases, and its seed."""

import pytest

from tests.hostile import attack


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if attack.CASES:
        terminalreporter.write_line(
            f"hostile input: {attack.counted} cases, SEED={attack.SEED} CASES={attack.CASES}; make fuzz repeats them"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and attack.counted < attack.CASES:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # a run with fewer cases than requested has failed
