"""What becomes of an error of each class: the first table of `docs/errors.md`."""

from __future__ import annotations

from typing import Final

CLASSES: Final = (
    (
        "`ConfigError`",
        ("The command is refused and lists everything it found. Correct the file, the command or the environment."),
        "2",
    ),
    (
        "`RequestError`",
        "The REST API answers a request with a problem and its status; nothing else happens.",
        "–",  # noqa: RUF001 as in the manuals
    ),
    (
        (
            "`TransientError`: `SourceUnavailableError`, `SourceLagsError`, `TargetUnavailableError`, "
            "`StateUnavailableError`, `JournalUnavailableError`, `MachineExhaustedError`"
        ),
        (
            "The worker restarts from its last durable position, with back-off (`retry:`). After "
            "`retry.give_up_after` without progress the replicator stops with the same code. Until something has "
            "been captured, `run` refuses instead of retrying. If a `SourceUnavailableError` concerns one table (a "
            "lock, a time limit during its snapshot), only that table waits; it fails if no row of it could be read "
            "for `retry.give_up_after`. If a `TargetUnavailableError` concerns one table, only that table waits at "
            "first. While the target accepts other tables, it counts as a `ThrottledError`. If it happens again and "
            "nothing else was applied, the worker restarts."
        ),
        "1 (2 if refused)",
    ),
    (
        "`ThrottledError`",
        (
            "The target cannot accept this table's data now. Only this table waits, at least as long as the target "
            "asks; `status` shows until when. Replicator waits for a limit (a rate, a quota, a budget) without a "
            "time limit. Otherwise the table fails once its own retry budget (`retry:`) is used up."
        ),
        "once failed, with `--until-caught-up`: 1",
    ),
    (
        "`TargetCrashedError` (a `TransientError`)",
        (
            "The target's engine ended while it worked. As `TransientError`; the tables that it worked on are "
            "applied alone, in smaller batches each time. One at which it ends four times fails (`engine_crashed`)."
        ),
        "as `TransientError`",
    ),
    (
        "`BatchTooLargeError`",
        (
            "The table is retried with smaller batches at once, for as long as the process lives. If a batch cannot "
            "be split, as `TableError`."
        ),
        "as `TableError`",
    ),
    (
        (
            "`TableError`: `UnsupportedTypeError`, `SchemaConflictError`, `TargetDamagedError`, `KeyMissingError`, "
            "`ImpossibleKeyError`"
        ),
        (
            "The table fails (`failed` in the status); the others continue. A new snapshot brings it back unless the "
            "row below says otherwise."
        ),
        "with `--until-caught-up`: 1",
    ),
    (
        ("`FatalError`: `OffsetExpiredError`, `LogGapError`, `CorruptStreamError`, `AccessDeniedError`, `FencedError`"),
        (
            "If it names a table, as `TableError` (except `fenced`, `ledger_ahead`, and `unexplained_change`, which "
            "a policy `stop` asks for). Otherwise the replicator stops (`failed` in the status). Fix the cause, then "
            "`run FILE` or `resume NAME`."
        ),
        "1",
    ),
    (
        "`PluginError`",
        (
            "A plugin broke its contract. If it was working on a table, that table fails, as with a `TableError`. "
            "Otherwise the replicator stops. Report it to the plugin's author."
        ),
        "1",
    ),
    (
        "`ReplicatorError`",
        "The base class of the above. By itself: the replicator stops.",
        "1",
    ),
    (
        "any other exception",
        (
            "A bug. If it happens in the work for one table (a chunk, its decoding, its journal file, a batch, …), "
            "that table fails with `internal_error`; the log has the traceback. In the target, a third table that "
            "would fail of the same error waits instead, for up to `retry.give_up_after`, while nothing else is "
            "applied. Otherwise the replicator stops with that code. Running out of memory, disk, processes or open "
            "files never counts as one table's error: see `disk_full`, `machine_exhausted`."
        ),
        "1",
    ),
    (
        "alarm",
        (
            "The target table may differ from its source; it continues. `status` and `list` show the alarm until a "
            "later snapshot of the table is complete, or a later verification finds the whole table equal."
        ),
        "with `--until-caught-up`: 1",
    ),
    (
        "`RefusedError` (a `TableError`)",
        (
            "A blocking problem of a table that already runs, or that a later start found. The table fails with the "
            "problem's code and fix. After the fix, a new snapshot brings it back; so does the next start."
        ),
        "with `--until-caught-up`: 1",
    ),
    (
        "`CurableError` (a `RefusedError`)",
        (
            "The same, by something that the check of the source finds: a missing privilege, a column that is not "
            "captured. Every 15 seconds the source is asked about such tables. After the fix a new snapshot begins "
            "by itself (`table_resumed` in the log, a line in `history`); `status` says which tables do that "
            "(`resumes_by_itself`). After three times within a day it waits for you: run `replicator snapshot NAME "
            "TABLE`."
        ),
        "with `--until-caught-up`: 1",
    ),
    (
        "finding",
        (
            "A problem that `validate`, `run` and `start` report before they do anything. A blocking one refuses the "
            "first start (exit 2); warnings and notices do not. Later, a problem of one table fails that table. Any "
            "other refuses the start. A running replicator stops only if the log can no longer be trusted."
        ),
        "2",
    ),
)
"""Names of classes, what happens next, and the exit code."""
