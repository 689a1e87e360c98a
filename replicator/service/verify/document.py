"""The document that `verify --json` prints. `docs/verify.schema.json` is generated from it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, NonNegativeInt

from replicator.model.documents.status import StatusModel

VERSION: Final = 1


class CountsDocument(StatusModel):
    """Numbers of rows that differ. Always all of them."""

    missing: NonNegativeInt = Field(description="Rows that the target does not have.")
    extra: NonNegativeInt = Field(description="Rows that the source does not have.")
    different: NonNegativeInt = Field(description="Rows with other values.")


class DifferenceDocument(StatusModel):
    """A row that differs."""

    key: dict[str, str | None] = Field(
        description="Its key: each column's value as text. Of a table without a key: all columns."
    )
    kind: Literal["missing", "extra", "different"] = Field(description="As in the counts.")
    columns: tuple[str, ...] = Field(description="The columns that differ, if source and target have the row.")
    source: dict[str, str | None] | None = Field(description="With --show-values: the source's values; otherwise null.")
    target: dict[str, str | None] | None = Field(description="With --show-values: the target's values; otherwise null.")


class VerifiedTableDocument(StatusModel):
    """Result for a table."""

    table: str = Field(description="schema.table, as in the status.")
    result: Literal["equal", "equal_in_part", "different", "nothing_compared", "not_verified"] = Field(
        description="Result of the comparison. equal_in_part: nothing differs, but not every column of the target could be compared. "
        "nothing_compared: no row was changed within --since."
    )
    scope: Literal["table", "sample", "keys", "since"] = Field(
        description="Rows compared: the whole table, a sample of its rows, the rows of --keys, or the rows that were changed within "
        "--since. A table of which the definition or all rows were changed within --since is compared as a whole (table)."
    )
    sample: float | None = Field(
        description="Share of the table in a sample, in percent; otherwise null. More than was asked for if that has no rows."
    )
    keys: NonNegativeInt | None = Field(
        description="With keys and since: number of rows looked for, whether they exist or not; otherwise null."
    )
    reason: str | None = Field(description="Reason why the table was not verified, or not repaired; otherwise null.")
    action: str | None = Field(description="The next step, if there is one.")
    position: int | None = Field(
        description="The sequence number at which source and target were compared; null if they were not. Of ranges that were compared at "
        "several: the lowest."
    )
    last_position: int | None = Field(description="The highest of them; the same one if there was only one.")
    ranges: NonNegativeInt | None = Field(
        description="Number of ranges of its key in which a whole table was compared, 1 if in one read; null if some rows were compared."
    )
    ranges_kept: NonNegativeInt = Field(
        description="Number of the ranges that were not compared again, because an earlier run had proven them (--resume)."
    )
    rows_source: NonNegativeInt | None = Field(description="Rows in the source there, of those that were compared.")
    rows_target: NonNegativeInt | None = Field(description="Rows in the target there, of those that were compared.")
    counts: CountsDocument = Field(description="Numbers of rows that differ.")
    repaired: CountsDocument | None = Field(
        description="With --repair: numbers of rows that differed before, if none does any more; otherwise null."
    )
    differences: tuple[DifferenceDocument, ...] = Field(description="At most 1,000 of them.")
    truncated: bool = Field(description="True if there are more differences than these.")
    not_compared: tuple[str, ...] = Field(
        description="Columns of the target that could not be compared: those that it keeps although the source dropped them, those of "
        "which a policy ignores a change of type, and those of which it does not keep the text. With them, a table is at most "
        "equal_in_part."
    )


class VerifyDocument(StatusModel):
    """Result of `verify`."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    tables: tuple[VerifiedTableDocument, ...] = Field(
        description="The tables, in the order in which they were verified."
    )
