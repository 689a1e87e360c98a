"""The settings of a table's columns, combined from all patterns that match the table, and what they make of a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.config import ColumnPattern, Mask, MaskFunction, TableOptions, TablePattern
from replicator.model.errors import SchemaConflictError
from replicator.model.naming import folded
from replicator.model.rules import columns
from replicator.model.schema import Column, TableId, TableSchema, type_to_text
from replicator.projection.columns import ProjectedColumn
from replicator.projection.masking import MaskDoesNotFitError, masked_type

PROJECTION_ERRORS: Final = frozenset(
    rule.code
    for rule in (
        columns.PROJECTION_LOST,
        columns.MASK_DOES_NOT_FIT,
        columns.MASK_KEY_CHANGED,
        columns.KEY_EXCLUDED,
        columns.KEY_MASKED,
    )
)
"""Codes of tables that cannot be replicated as their settings say: no policy and no request lets them continue."""


@dataclass(frozen=True, kw_only=True)
class ColumnRules:
    """Settings of the columns of one table.

    Attributes:
        includes: Lists of patterns; a column must be in each.
        excludes: Patterns of columns that are left out.
        takes_new: Columns that are added later are replicated.
        masks: Functions by pattern, in the order of the file.
        renames: Names in the target, by folded names in the source.
    """

    includes: tuple[tuple[ColumnPattern, ...], ...] = ()
    excludes: tuple[ColumnPattern, ...] = ()
    takes_new: bool = True
    masks: tuple[tuple[ColumnPattern, Mask], ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is any setting."""
        return bool(self.includes or self.excludes or self.masks or self.renames or not self.takes_new)

    @property
    def protects(self) -> bool:
        """Return whether values of any column might have to stay in the source."""
        return bool(self.includes or self.excludes or self.masks or not self.takes_new)

    def leaves_out(self, column: str) -> bool:
        """Return whether a column of this name does not leave the source."""
        return any(pattern.matches(column) for pattern in self.excludes) or not all(
            any(pattern.matches(column) for pattern in patterns) for patterns in self.includes
        )

    def mask_of(self, column: str) -> Mask | None:
        """Return the function of a column's values; None: they stay as they are."""
        found = self._named_mask(column)
        if found is None:
            found = next((mask for pattern, mask in reversed(self.masks) if pattern.matches(column)), None)
        return None if found is None or found.function is MaskFunction.CLEAR else found

    def protects_name(self, column: str) -> bool:
        """Return whether a column of this name is left out or masked, whenever it was added."""
        return self.leaves_out(column) or self.mask_of(column) is not None

    def hides(self, column: str) -> bool:
        """Return whether values of a column of this name might have to stay in the source."""
        return self.protects_name(column) or self._refuses_new(column)

    def project(
        self, schema: TableSchema, *, before: Sequence[ProjectedColumn] = (), known: TableSchema | None = None
    ) -> tuple[ProjectedColumn, ...]:
        """Return the columns of a schema that the settings leave out, mask or rename.

        Args:
            schema: The table as the source has it now.
            before: The answer for the schema before it.
            known: The schema before it; None: the table is replicated for the first time.

        Raises:
            SchemaConflictError: `mask_does_not_fit`, `key_excluded`, `key_masked`, `mask_key_changed`: it cannot be projected so.
        """
        former_name = _former_names(known)
        stay_out = {entry.column for entry in before if entry.is_new}
        keys = {entry.column: entry for entry in before if entry.key is not None}
        found: list[ProjectedColumn] = []
        for column in schema.columns:
            former = former_name(column)
            if self.leaves_out(column.name):
                entry = ProjectedColumn(column=column.name, is_left_out=True)
            elif (former is None or former in stay_out) and self._refuses_new(column.name):
                entry = ProjectedColumn(column=column.name, is_left_out=True, is_new=True)
            else:
                entry = self._entry(column, schema, None if former is None else keys.get(former))
            if column.name in schema.key and entry.is_protected:
                raise _key_refused(schema.table, column, entry)
            if entry != ProjectedColumn(column=column.name):
                found.append(entry)
        return tuple(found)

    def refuse_rename(self, table: TableId, old: str, new: str, others: Iterable[str] = ()) -> None:
        """Stop a table whose source gave a column another name, unless the column is treated as before, or the settings name it.

        Args:
            table: The table.
            old: The name before.
            new: The name now.
            others: Names that other columns had. What the settings say of such a name was said of the column that had it.

        Raises:
            SchemaConflictError: `projection_lost`.
        """
        is_taken = folded(new) in {folded(name) for name in others}
        if self._treatment(old) == self._treatment(new) or not (is_taken or self._is_lost(old, new)):
            return
        rule = columns.NAME_TAKEN_OVER if is_taken else columns.PROJECTION_LOST
        raise rule.error(
            SchemaConflictError,
            table=str(table),
            old=old,
            column=new,
            was=self._words(old),
            becomes=self._words(new),
        )

    def refuse_replacement(self, table: TableId, lost: str, new: Sequence[str]) -> None:
        """Stop a table that lost a protected column while others came, where the source does not tell a rename from that.

        Raises:
            SchemaConflictError: `projection_lost`.
        """
        doubtful = [name for name in new if self._is_lost(lost, name)]
        if not doubtful or not self.protects_name(lost):
            return
        raise columns.COLUMN_REPLACED.error(
            SchemaConflictError,
            table=str(table),
            old=lost,
            column=doubtful[0],
            others=", ".join(doubtful),
            was=self._words(lost),
        )

    def _entry(self, column: Column, schema: TableSchema, before: ProjectedColumn | None) -> ProjectedColumn:
        mask = self.mask_of(column.name)
        name = self.renames.get(folded(column.name))
        if mask is None:
            return ProjectedColumn(column=column.name, name=name)
        _refuse_other_key(mask, before, schema.table)
        return ProjectedColumn(
            column=column.name,
            mask=str(mask),
            key=mask.fingerprint,
            type=_type_text(column, mask, schema.table),
            name=name,
        )

    def _refuses_new(self, column: str) -> bool:
        is_named = any(
            pattern.is_name and pattern.matches(column) for patterns in self.includes for pattern in patterns
        )
        return not self.takes_new and not is_named

    def _named_mask(self, column: str) -> Mask | None:
        return next((m for pattern, m in reversed(self.masks) if pattern.is_name and pattern.matches(column)), None)

    def _is_lost(self, old: str, new: str) -> bool:
        """Return whether a column is treated otherwise under its new name, which the settings do not name."""
        return self._named_mask(new) is None and self._treatment(old) != self._treatment(new)

    def _treatment(self, column: str) -> tuple[bool, Mask | None]:
        return self.leaves_out(column), self.mask_of(column)

    def _words(self, column: str) -> str:
        if self.leaves_out(column):
            return "left out"
        mask = self.mask_of(column)
        return "replicated as it is" if mask is None else f"masked by {mask}"


NO_RULES: Final = ColumnRules()


def rules_for(table: TableId, settings: Mapping[TablePattern, TableOptions]) -> ColumnRules:
    """Combine the settings of all patterns that match a table: no pattern takes away what another one protects."""
    blocks = [options for pattern, options in settings.items() if pattern.matches(table)]
    chosen = [options.columns for options in blocks if options.columns is not None]
    includes = tuple(one.include for one in chosen if one.include is not None)
    wishes = {options.new_columns for options in blocks}
    takes_new = "exclude" not in wishes and ("include" in wishes or not includes)
    renames = next((options.rename for options in reversed(blocks) if "rename" in options.model_fields_set), {})
    return ColumnRules(
        includes=includes,
        excludes=tuple(pattern for one in chosen for pattern in one.exclude or ()),
        takes_new=takes_new,
        masks=tuple(item for options in blocks for item in options.mask.items()),
        renames={folded(source): target for source, target in renames.items()},
    )


def _former_names(known: TableSchema | None) -> Callable[[Column], str | None]:
    """Return a function that tells the name that a column had before, by its number where the source has numbers; None: it is new."""
    if known is None:
        return lambda column: column.name
    names = {column.name: column.name for column in known.columns}
    ids = {column.id: column.name for column in known.columns}
    if None in ids:
        return lambda column: names.get(column.name)
    return lambda column: names.get(column.name) if column.id is None else ids.get(column.id)


def _type_text(column: Column, mask: Mask, table: TableId) -> str:
    try:
        return type_to_text(masked_type(mask, column.type))
    except MaskDoesNotFitError as error:
        raise columns.MASK_DOES_NOT_FIT.error(
            SchemaConflictError,
            table=str(table),
            column=column.name,
            source_type=column.source_type,
            function=mask.function.value,
            reason=error,
        ) from None


def _refuse_other_key(mask: Mask, before: ProjectedColumn | None, table: TableId) -> None:
    if before is None or before.mask != str(mask) or before.key in (mask.fingerprint, mask.former_fingerprint):
        return
    raise columns.MASK_KEY_CHANGED.error(SchemaConflictError, table=str(table), column=before.column)


def _key_refused(table: TableId, column: Column, entry: ProjectedColumn) -> SchemaConflictError:
    rule = columns.KEY_EXCLUDED if entry.is_left_out else columns.KEY_MASKED
    return rule.error(SchemaConflictError, table=str(table), column=column.name)
