"""Findings about the server and our account there: `check`, as far as no table is concerned. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.server import ServerFacts, global_privileges

_PACKET_MIN: Final = 64 << 20
_DAY_S: Final = 86_400
_WEEK_S: Final = 604_800
_GTID_MODES: Final = ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
_PREPARED_SHOWN: Final = 5
_EXCESS: Final = (
    "ALL PRIVILEGES",
    "SUPER",
    "INSERT",
    "UPDATE",
    "DELETE",
    "DROP",
    "ALTER",
    "CREATE USER",
    "FILE",
    "SHUTDOWN",
)


_TRUSTED: Final = frozenset({"binlog_format", "binlog_row_image", "binlog_order_commits"})
"""Settings without which the log cannot be trusted, also while it is read: what sessions write then is not whole, or not in order."""


def assess_server(facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Problems of the server that would keep its changes from being replicated correctly."""
    if facts.is_too_old:
        oldest = ".".join(map(str, facts.flavor.oldest))
        return [
            Problem(
                code="server_too_old",
                message=f"The server is {facts.name}; {oldest} or later is needed.",
                location="source.host",
                action="Upgrade the server.",
            )
        ]
    return [
        *_log(facts),
        *_without_gtids(facts, config),
        *_rows(facts),
        *_durability(facts, config),
        *_role(facts),
        *_privileges(facts, config),
        *_retention(facts),
    ]


def _log(facts: ServerFacts) -> list[Problem]:
    problems = []
    if not facts.is_on("log_bin"):
        problems.append(_setting("log_bin", "OFF", "ON", "add `log_bin` to the server's configuration and restart it"))
    if facts.is_between:
        problems.append(
            Problem(
                code="server_setting",
                message=f"gtid_mode is {facts.gtid_mode}: the log has transactions with and without GTIDs, so a GTID set does not "
                "describe what was read. ON is needed, or OFF.",
                location="gtid_mode",
                action="Finish the change: SET PERSIST gtid_mode = ON; -- or one step back at a time, to OFF",
                sql=(
                    "SET PERSIST enforce_gtid_consistency = ON;",
                    *(f"SET PERSIST gtid_mode = {mode};" for mode in _steps_to_gtids(facts.gtid_mode)),
                ),
            )
        )
    problems += [
        Problem(
            code="log_filter",
            message=f"{name} is set ({', '.join(names)}): statements such as TRUNCATE and ALTER TABLE are filtered by the default "
            "database of their session, whatever table they name.",
            location=name,
            action="Remove it from the configuration and restart the server.",
            severity=Severity.WARNING,
        )
        for name, names in facts.filters.log.items()
    ]
    if facts.variables.get("binlog_storage_engine"):
        problems.append(
            _setting("binlog_storage_engine", facts.variables["binlog_storage_engine"], "(empty)", "unset it")
        )
    return problems


def _steps_to_gtids(mode: str) -> Sequence[str]:
    """The values that gtid_mode takes from here to ON, one after another."""
    return _GTID_MODES[_GTID_MODES.index(mode.upper()) + 1 :]


def _without_gtids(facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Problems with files and bytes instead of GTIDs: they need a watermark that can be written, and commits in the order of the log."""
    if not facts.is_by_file:
        return []
    problems = [
        Problem(
            code="no_gtids",
            message="gtid_mode is OFF. Log positions are valid on this server only, so failover to another server is not "
            f"possible. For each chunk, a row is inserted into {config.watermark} and deleted again.",
            location="gtid_mode",
            action="Better: SET PERSIST enforce_gtid_consistency = ON; SET PERSIST gtid_mode = OFF_PERMISSIVE; then"
            " ON_PERMISSIVE; then ON;",
            severity=Severity.NOTICE,
        )
    ]
    if not facts.is_on("binlog_order_commits"):
        problems.append(
            _setting(
                "binlog_order_commits",
                "OFF",
                "ON",
                "SET PERSIST binlog_order_commits = ON; -- or switch GTIDs on",
                sql="SET PERSIST binlog_order_commits = ON;",
            )
        )
    if facts.is_on("read_only") or facts.is_on("super_read_only"):
        problems.append(
            Problem(
                code="server_setting",
                message="read_only is ON, but without GTIDs Replicator must write watermarks.",
                location="read_only",
                action="Name the primary server as host, or switch GTIDs on.",
            )
        )
    is_lower_case = facts.lower_case_table_names != 0
    if name := facts.filters.of_log(config.watermark, is_lower_case=is_lower_case):
        problems.append(
            Problem(
                code="left_out_of_log",
                message=f"{name} keeps watermarks out of the log.",
                location="source.watermark_table",
                action="Remove the filter, or name a table of another database.",
            )
        )
    return problems


def _rows(facts: ServerFacts) -> list[Problem]:
    problems = []
    for name, wanted in (("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("binlog_row_metadata", "FULL")):
        found = facts.variables.get(name, wanted)
        if found.upper() != wanted:
            problems.append(
                _setting(name, found, wanted, sql=f"SET GLOBAL {name} = '{wanted}'; -- and in the server's option file")
            )
    if facts.variables.get("binlog_row_value_options"):
        problems.append(
            _setting(
                "binlog_row_value_options",
                facts.variables["binlog_row_value_options"],
                "(empty)",
                sql="SET GLOBAL binlog_row_value_options = ''; -- and in the server's option file",
            )
        )
    if int(facts.variables.get("binlog_row_event_fragment_threshold", "0") or 0):
        problems.append(
            _setting(
                "binlog_row_event_fragment_threshold",
                facts.variables["binlog_row_event_fragment_threshold"],
                "0",
                sql="SET GLOBAL binlog_row_event_fragment_threshold = 0; -- and in the server's option file",
            )
        )
    return problems


def _durability(facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    severity = Severity.WARNING if config.accept_log_loss else Severity.BLOCKING
    return [
        Problem(
            code="log_may_be_lost",
            message=f"{name} is {facts.variables[name]}: after a crash of its operating system the server may have lost "
            "transactions that were already replicated, and reuse their GTIDs.",
            location=name,
            action=f"SET GLOBAL {name} = 1; -- and in the server's option file; or set source.accept_log_loss: true",
            sql=(f"SET GLOBAL {name} = 1; -- and in the server's option file",),
            severity=severity,
        )
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit")
        if facts.variables.get(name, "1") != "1"
    ]


def _role(facts: ServerFacts) -> list[Problem]:
    problems = []
    updates = next((n for n in ("log_replica_updates", "log_slave_updates") if n in facts.variables), None)
    if updates is not None and not facts.is_on(updates):
        problems.append(
            Problem(
                code="replica_does_not_log",
                message=f"{updates} is OFF: the server does not log what it replicates from another one.",
                location=updates,
                action=f"Add `{updates}` to its configuration and restart it, or name the primary server as host.",
                severity=Severity.BLOCKING if facts.is_replica is not False else Severity.NOTICE,
            )
        )
    if "aurora_version" in facts.variables and facts.is_on("innodb_read_only"):
        problems.append(
            Problem(
                code="aurora_reader",
                message="The server is a reader of Aurora, which has no log of its own.",
                location="source.host",
                action="Name the cluster's writer endpoint.",
            )
        )
    if facts.lower_case_table_names == 2:  # noqa: PLR2004 - the server's own number
        problems.append(
            _setting("lower_case_table_names", "2", "0 or 1", "use a server with a case-sensitive file system")
        )
    # It bounds neither rows that are read nor the log (measured, MySQL 9.7 and MariaDB 10.11), only the text of a value of type JSON.
    if not facts.flavor.json_is_text and int(facts.variables.get("max_allowed_packet", _PACKET_MIN)) < _PACKET_MIN:
        problems.append(
            Problem(
                code="max_allowed_packet",
                message=(
                    f"max_allowed_packet is {facts.variables['max_allowed_packet']}: a JSON value whose text is longer cannot be read"
                    " by a snapshot, and fails its table."
                ),
                location="max_allowed_packet",
                sql=(f"SET GLOBAL max_allowed_packet = {_PACKET_MIN}; -- and in the server's option file",),
                severity=Severity.WARNING,
            )
        )
    return problems


def has_privilege(facts: ServerFacts, *options: str) -> bool:
    """Return whether our account has one of these privileges on all databases."""
    granted = global_privileges(facts.grants)
    return "ALL PRIVILEGES" in granted or not granted.isdisjoint(options)


def _privileges(facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    needed: list[tuple[str, ...]] = [("REPLICATION SLAVE", "REPLICATION REPLICA"), ("PROCESS",)]
    needed.append(facts.flavor.status_privileges)
    problems = [
        Problem(
            code="privilege_missing",
            message=f"The account {config.user} lacks {options[0]}.",
            location="source.user",
            sql=(f"GRANT {options[0]} ON *.* TO {account_of(facts, config)};",),
        )
        for options in needed
        if not has_privilege(facts, *options)
    ]
    excess = sorted(global_privileges(facts.grants).intersection(_EXCESS))
    if excess:
        problems.append(
            Problem(
                code="privilege_excess",
                message=f"The account {config.user} has more privileges than needed on every database: {', '.join(excess)}.",
                location="source.user",
                action="Use a separate account for Replicator.",
                severity=Severity.WARNING,
            )
        )
    return problems


_NAME: Final = r"`(?:[^`]|``)*`"
_GRANT: Final = re.compile(rf"GRANT (.*?) ON (\*|{_NAME})\.(\*|{_NAME}) TO ")
_COLUMNS: Final = re.compile(rf" \({_NAME}(?:, {_NAME})*\)")


def granted_by_column(facts: ServerFacts, table: TableId) -> bool:
    """Return whether our account may SELECT columns of this table, one by one, and no grant is of the whole table."""
    is_by_column = False
    for grant in facts.grants:
        match = _GRANT.match(grant)
        if match is None or not _covers(match[2], table.namespace, facts, is_pattern=True):
            continue
        if not _covers(match[3], table.name, facts, is_pattern=False):
            continue
        privileges = _COLUMNS.sub("()", match[1]).split(", ")
        if "SELECT" in privileges or "ALL PRIVILEGES" in privileges:
            return False
        is_by_column = is_by_column or "SELECT()" in privileges
    return is_by_column


def _covers(granted: str, name: str, facts: ServerFacts, *, is_pattern: bool) -> bool:
    if granted == "*":
        return True
    plain = granted[1:-1].replace("``", "`")
    flags = re.IGNORECASE if facts.lower_case_table_names else 0
    # Names of databases are patterns in grants: `shop\_%`.
    parts = re.findall(r"\\.|.", plain, re.DOTALL) if is_pattern else list(plain)
    wild = {"%": ".*", "_": "."} if is_pattern else {}
    return re.fullmatch("".join(wild.get(p) or re.escape(p[-1]) for p in parts), name, flags | re.DOTALL) is not None


def account_of(facts: ServerFacts, config: MysqlConfig) -> str:
    """Our account as the server names it."""
    for grant in facts.grants:
        if match := re.search(r" TO ([`'\"].*?[`'\"]@[`'\"].*?[`'\"])", grant):
            return match[1]
    return f"'{config.user}'@'%'"


def prepared_before_start(xids: Collection[str]) -> list[Problem]:
    """Warn of the cost of committing XA transactions that are prepared already."""
    if not xids:
        return []
    names = sorted(xids)
    shown = names[:_PREPARED_SHOWN] + (["…"] if len(names) > _PREPARED_SHOWN else [])
    is_one = len(names) == 1
    return [
        Problem(
            code="prepared_before_start",
            message=f"{'An XA transaction is' if is_one else f'{len(names)} XA transactions are'} prepared: {'; '.join(shown)}. When"
            " one is committed that was prepared before the log was first read, its changes are unknown, and every table gets a new"
            " snapshot.",
            location="XA RECOVER",
            action=f"Before the first start: XA COMMIT {names[0]}; or XA ROLLBACK {names[0]};{'' if is_one else ' -- and so on'}",
            severity=Severity.WARNING,
        )
    ]


def _retention(facts: ServerFacts) -> list[Problem]:
    kept = retention(facts)
    if kept is None:
        return []
    seconds = kept.total_seconds()
    return [
        Problem(
            code="log_retention",
            message=f"The server keeps its log for {seconds / _DAY_S:.1f} days; after a longer pause the position is lost.",
            location="binlog_expire_logs_seconds",
            action="If a pause may be longer, raise binlog_expire_logs_seconds."
            if seconds >= _WEEK_S
            else f"SET GLOBAL binlog_expire_logs_seconds = {_WEEK_S}; -- a week; more if a pause may be longer",
            sql=_retention_statements(facts) if seconds < _WEEK_S else (),
            severity=Severity.WARNING if seconds < _DAY_S else Severity.NOTICE,
        )
    ]


def _retention_statements(facts: ServerFacts) -> tuple[str, ...]:
    """Statements that lengthen the retention; empty where the server counts days instead of seconds: it refuses both."""
    if not float(facts.variables.get("binlog_expire_logs_seconds") or 0):
        return ()
    return (f"SET GLOBAL binlog_expire_logs_seconds = {_WEEK_S}; -- and in the server's option file",)


def retention(facts: ServerFacts) -> timedelta | None:
    """Time for which the server keeps its log; None where it purges nothing by its age, or also by its size."""
    is_by_size = int(facts.variables.get("max_binlog_total_size") or 0) > 0
    if is_by_size or facts.variables.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        return None
    seconds = float(facts.variables.get("binlog_expire_logs_seconds") or 0)
    if not seconds:
        seconds = float(facts.variables.get("expire_logs_days") or 0) * _DAY_S
    return timedelta(seconds=seconds) if seconds else None


def _setting(name: str, found: str, wanted: str, action: str | None = None, *, sql: str | None = None) -> Problem:
    return Problem(
        code="server_setting",
        message=f"{name} is {found}; {wanted} is needed.",
        location=name,
        action=action,
        sql=() if sql is None else (sql,),
        applies="always" if name in _TRUSTED else "start",
    )
