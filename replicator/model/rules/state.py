"""Rules about the state store."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptStreamError,
    FatalError,
    StateUnavailableError,
)
from replicator.model.rules import Section

SECTION: Final = Section("State store")

INVALID_STATE_URL: Final = SECTION.rule(
    "invalid_state_url",
    raises=(ConfigError,),
    meaning="`REPLICATOR_STATE_URL` cannot be used. The message says why.",
    remedy=(
        "`sqlite:////path/state.db` or `postgresql://user@host/database`, with each `@` of the password as `%40` "
        "(`connections.md`)."
    ),
)

MISSING_DRIVER: Final = SECTION.rule(
    "missing_driver",
    raises=(ConfigError,),
    meaning="A store on PostgreSQL needs psycopg.",
    remedy="Install `replicator[postgresql]`.",
)

HOME: Final = SECTION.rule(
    "home",
    raises=(ConfigError,),
    meaning="The folder `REPLICATOR_HOME` cannot be made.",
    remedy="Set it to a folder that this user may write.",
)

HOME_WRITABLE_BY_ALL: Final = SECTION.rule(
    "home_writable_by_all",
    raises=(ConfigError,),
    meaning=(
        "Every user of the machine may write into `REPLICATOR_HOME`: who exchanges the state store there decides "
        "which programs run as this user."
    ),
    remedy="`chmod o-w` it. Where that is not possible (a volume of a container), set it to a new folder in it.",
)

STATE_PATH: Final = SECTION.rule(
    "state_path",
    raises=(ConfigError,),
    meaning="The file cannot be opened, or is not a file.",
    remedy="Correct `REPLICATOR_HOME` or `REPLICATOR_STATE_URL`.",
)

NETWORK_FILE_SYSTEM: Final = SECTION.rule(
    "network_file_system",
    raises=(ConfigError,),
    meaning="SQLite on a network file system loses data.",
    remedy="A local disk, or PostgreSQL.",
)

STATE_LOCKED: Final = SECTION.rule(
    "state_locked",
    raises=(StateUnavailableError,),
    meaning="Another process kept the file locked.",
    remedy="Find it with `fuser` or `lsof`.",
)

STATE_UNAVAILABLE: Final = SECTION.rule(
    "state_unavailable",
    raises=(StateUnavailableError,),
    meaning="The store cannot be reached or opened, or its server does not prove who it is by TLS.",
    remedy="Check server, disk and rights; for TLS see `connections.md`.",
)

STATE_DISK_FULL: Final = SECTION.rule(
    "state_disk_full",
    raises=(StateUnavailableError,),
    meaning="Its disk is full.",
    remedy="Free some space.",
)

STATE_READ_ONLY: Final = SECTION.rule(
    "state_read_only",
    raises=(StateUnavailableError,),
    meaning="The file or its folder is read-only.",
    remedy="Make both writable.",
)

STATE_ACCESS_DENIED: Final = SECTION.rule(
    "state_access_denied",
    raises=(AccessDeniedError,),
    meaning="The server refuses credentials or a privilege.",
    remedy="Fix them.",
)

STATE_FAILED: Final = SECTION.rule(
    "state_failed",
    raises=(FatalError,),
    meaning="The store answered with an unexpected error; the message has its words and code.",
    remedy="Report it with the log, then start again.",
)

STATE_MISSING: Final = SECTION.rule(
    "state_missing",
    raises=(FatalError,),
    meaning="The database of the URL does not exist.",
    remedy="Create it, or correct the URL.",
)

NEWER_STATE: Final = SECTION.rule(
    "newer_state",
    raises=(FatalError,),
    meaning="A newer version has migrated it.",
    remedy="Use that version.",
)

OLDER_STATE: Final = SECTION.rule(
    "older_state",
    raises=(FatalError,),
    meaning="A version before the first release wrote it, and nothing reads its format any more.",
    remedy=("With the version that wrote it, `delete` its replicators; then move the store away and start them again."),
)

CORRUPT_STATE: Final = SECTION.rule(
    "corrupt_state",
    raises=(CorruptStreamError, FatalError),
    meaning="Damaged, or not a state store.",
    remedy=(
        "Restore a backup. A replicator that ran since then is refused (`home_copied`; see there), and then "
        "stops with `ledger_ahead` if its target has changes that the backup does not know. Or move the store "
        "away, set `target.adopt: replace`, and run every replicator again."
    ),
)

LEDGER_AHEAD: Final = SECTION.rule(
    "ledger_ahead",
    raises=(FatalError,),
    meaning=(
        "The target's ledger has a number, or is of an incarnation or epoch, that this store does not know: it "
        "was restored from an older copy. It would assign the same numbers twice, and the target would skip new "
        "changes."
    ),
    remedy="Restore the newest store; or `delete NAME --drop-target` and run the file again.",
)
