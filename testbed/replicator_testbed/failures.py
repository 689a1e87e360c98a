"""A pytest plugin that names each test that fails at once: of a run that is ended from outside, the summary is never printed."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Report where the results arrive: not in the processes that xdist gives the tests to."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config), "replicator-failures")


class _Failures:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash is not None else report.longreprtext
        # In front of it is the letter of the test, or of another one.
        terminal.write(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {reason.strip()[:1000]}\n")
