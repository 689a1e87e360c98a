"""A worker process: `replicator.runtime.worker capture|apply|verify NAME EPOCH`, started by the supervisor."""

from __future__ import annotations

import signal
import sys
import threading

from replicator.model.errors import FatalError, ReplicatorError
from replicator.observability import configure_logging, get_logger
from replicator.plugins.registry import Registry
from replicator.runtime import messages
from replicator.runtime.control import WorkerControl
from replicator.runtime.home import Home
from replicator.state.records import Role
from replicator.state.store import StateStore

_log = get_logger(__name__)


def main(arguments: list[str]) -> int:
    """Run one pump until it is told to stop, and report how it ended. Never retries: the supervisor decides.

    SIGTERM also stops it at a clean point. Its supervisor, which has not asked for that, treats it as ended but not finished.
    """
    role, name, epoch = Role(arguments[0]), arguments[1], int(arguments[2])
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing but messages may go up the pipe
    configure_logging(format="json", stream=sys.stderr)
    home = Home.from_environment()
    try:
        store = StateStore(home.state_url)
    except ReplicatorError as error:
        answers.write(messages.encode(messages.ERROR, messages.encode_error(error)) + "\n")
        return 1
    control = WorkerControl(store, name, epoch, commands=sys.stdin, answers=answers)
    control.listen()
    is_ended = threading.Event()

    def end(*_: object) -> None:
        is_ended.set()
        control.stop()

    signal.signal(signal.SIGTERM, end)
    _log.info("worker_started", role=role, epoch=epoch)
    try:
        _run(store, home, role, name, epoch, control)
    except ReplicatorError as error:
        _log.error("worker_failed", role=role, code=error.code, error=str(error), table=error.table)
        control.announce(messages.ERROR, **messages.encode_error(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the process boundary: whatever ends the pump is reported, then the process ends
        _log.exception("worker_crashed", role=role)
        control.announce(messages.ERROR, **messages.encode_error(error))
        return 1
    finally:
        store.close()
    _log.info("worker_stopped", role=role)
    if not is_ended.is_set():
        control.announce(messages.FINISHED)
    return 0


def _run(store: StateStore, home: Home, role: Role, name: str, epoch: int, control: WorkerControl) -> None:
    store.leases.check_epoch(name, epoch)
    record = store.replicator(name)
    if record is None:
        raise FatalError(f"{name} is not in the state store.", code="unknown_replicator")
    match role:
        # A process imports what its own role needs.
        case Role.CAPTURE:
            from replicator.runtime.pumps import run_capture as run
        case Role.VERIFY:
            from replicator.runtime.verifying import run_verify as run
        case _:
            from replicator.runtime.pumps import run_apply as run
    run(store, home, Registry.discover(), record, epoch, control)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
