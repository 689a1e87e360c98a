"""The demo: prepares a server, a folder and a target, and has the script run between them."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from replicator_testbed.demo.sources import demo_source
from replicator_testbed.demo.targets import demo_target
from replicator_testbed.scratch_servers import ServerProgramsNotFoundError


class DemoFailedError(Exception):
    """Something did not happen that must."""


def run_demo(*, source: str = "postgresql", target: str = "delta", keep: bool = False) -> int:
    """Run the demo; return the exit code: 0 when source and target are equal.

    Args:
        source: A name of `sources.SOURCES`.
        target: A name of `targets.TARGETS`.
        keep: Leave the scratch folder for a look.
    """
    console = Console()
    # So that ending the demo does not leave its replicator and its servers behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # The host's runtime takes a second to import; the server starts meanwhile.
    threading.Thread(target=import_module, args=("replicator_testbed.demo.script",)).start()
    folder = Path(tempfile.mkdtemp(prefix="replicator-demo-"))
    try:
        with demo_source(source) as origin, demo_target(target, folder) as side:
            from replicator_testbed.demo.script import Demo

            return Demo(console, folder, origin, side).run()
    except ServerProgramsNotFoundError as error:
        tell_failure(console, "The demo needs a server:", error)
        return 1
    except DemoFailedError as error:
        tell_failure(console, "The demo failed:", error)
        return 1
    finally:
        if keep:
            console.print(f"Kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def tell_failure(console: Console, what: str, error: Exception) -> None:
    """Print what failed; an error's text may have codes and paths in brackets, which are no markup."""
    console.print(f"[red]{what}[/red] {escape(str(error))}", markup=True, highlight=False)
