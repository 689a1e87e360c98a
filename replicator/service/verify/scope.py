"""Options of `replicator verify` that choose the rows to compare, and the method for whole tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final, Self

from replicator.config import format_duration, parse_duration
from replicator.model.errors import ConfigError
from replicator.model.schema import TableId
from replicator.state.store import StateStore
from replicator.state.verification.records import RangeRecord
from replicator.verify import Keys, Pace, Sample, Since, VerifyScope, Visit, Whole, ids_of
from replicator.verify.barriers import Barriers

_PERCENT: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,20})?")
_PERCENT_MAX: Final = 100
_RESUMED: Final = timedelta(days=1)
"""Age up to which `--resume` leaves out proven ranges, without `verify.every`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedScope:
    """Values of the options; at most one of the first three is set, and with one of them none of the others."""

    sample: Decimal | None = None
    keys: tuple[str, ...] = ()
    since: timedelta | None = None
    rows_per_second: int | None = None
    resumes: bool = False

    @classmethod
    def read(
        cls,
        tables: Sequence[str],
        *,
        sample: str | None,
        keys: Sequence[str],
        since: str | None,
        rows_per_second: int | None = None,
        resumes: bool = False,
    ) -> Self:
        """Read the options.

        Raises:
            ConfigError: `two_scopes`, `unknown_sample`, `unknown_duration`; `unknown_row_key`, unless keys are those of one table.
        """
        given = {"--sample": sample is not None, "--keys": bool(keys), "--since": since is not None}
        if len(named := [option for option, is_given in given.items() if is_given]) > 1:
            raise ConfigError(
                f"{' and '.join(named)} cannot be combined.", code="two_scopes", action="Choose one of them."
            )
        of_whole = {"--resume": resumes, "--rows-per-second": rows_per_second is not None}
        if named and (others := [option for option, is_given in of_whole.items() if is_given]):
            raise ConfigError(
                f"{named[0]} cannot be combined with {' and '.join(others)}, which is for whole tables.",
                code="two_scopes",
                action=f"Leave out {named[0]}, or the other.",
            )
        if keys and len(tables) != 1:
            raise ConfigError(
                f"--keys are keys of one table; {len(tables)} tables are named.",
                code="unknown_row_key",
                action="Name the table: replicator verify NAME TABLE --keys '…'.",
            )
        return cls(
            sample=None if sample is None else _percent(sample),
            keys=tuple(keys),
            since=None if since is None else _duration(since),
            rows_per_second=rows_per_second,
            resumes=resumes,
        )

    def visit(
        self, store: StateStore, every: timedelta | None, barriers: Barriers, wait: Callable[[float], object]
    ) -> Visit:
        """Return the ranges of whole tables to compare. `every`: `verify.every`; `wait`: waits for at most the given seconds."""
        now = store.now()
        oldest = now - (every or _RESUMED)
        pace = None
        if self.rows_per_second is not None:
            pace = Pace(rows_per_second=self.rows_per_second, check=barriers.check, wait=wait)

        def keeps(one: RangeRecord) -> bool:
            # The age of a proof from the future is unknown: the clock was set back since.
            return self.resumes and one.proven_at is not None and oldest < one.proven_at <= now

        return Visit(keeps=keeps, pace=pace)

    def scope(self, store: StateStore, name: str, tables: Sequence[TableId], keep: timedelta) -> VerifyScope:
        """Return the scope, for these tables of a replicator that keeps its journal for the time `keep`.

        Raises:
            ConfigError: `unknown_row_key`, `journal_too_short`.
        """
        if self.sample is not None:
            return Sample(self.sample)
        if self.keys:
            for record in store.tables(name):
                if record.table in tables and record.schema is not None:
                    # Errors in them are reported before a worker starts.
                    ids_of(self.keys, record.schema)
            return Keys(self.keys)
        if self.since is None:
            return Whole()
        if self.since > keep:
            raise ConfigError(
                f"The journal of {name} keeps changes for {format_duration(keep)}, not for {format_duration(self.since)}.",
                code="journal_too_short",
                action="Choose a shorter --since, or leave it out. To keep changes for longer, raise journal.keep.",
            )
        return Since(store.now() - self.since)


def _percent(text: str) -> Decimal:
    percent = Decimal(text) if _PERCENT.fullmatch(text) else None
    if percent is None or not 0 < percent <= _PERCENT_MAX:
        raise ConfigError(
            f"{text!r} is not a percentage.",
            code="unknown_sample",
            action="Write a number above 0 and up to 100 for --sample, such as 5 or 0.5.",
        )
    return percent


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} {error}.", code="unknown_duration", action="Write a duration for --since, such as 90m."
        ) from None
