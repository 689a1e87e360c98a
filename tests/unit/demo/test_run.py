"""What the demo prints."""

from __future__ import annotations

import io

from rich.console import Console

from replicator_testbed.demo.run import DemoFailedError, tell_failure


def test_an_error_is_printed_as_it_is_whatever_brackets_it_has() -> None:
    text = "retrying: [source_unavailable] no server at [/var/run/x] [red]"
    console = Console(file=io.StringIO(), width=200)
    tell_failure(console, "The demo failed:", DemoFailedError(text))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"The demo failed: {text}\n"
