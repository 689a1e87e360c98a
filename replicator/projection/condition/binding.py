"""Conditions for a version of a table: names become columns, literals values of their types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from replicator.model.arrow import pa
from replicator.model.schema import Column, TableSchema, type_to_text
from replicator.projection.condition import values
from replicator.projection.condition.syntax import (
    Condition,
    ConditionError,
    Fault,
    Joined,
    Literal,
    LiteralKind,
    Name,
    Not,
    Operand,
    Operator,
    Predicate,
    Term,
)
from replicator.projection.condition.values import Family, Misfit, family

if TYPE_CHECKING:
    from replicator.projection.condition.evaluating import Columns, Evaluator


_OF_ONE_COLUMN: Final = {Operator.IN, Operator.IS_NULL, Operator.IS_TRUE, Operator.LIKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCondition:
    """A condition for one version of a table.

    Attributes:
        columns: Those of the condition, in the table's order, with the types that it was bound to.
        fields: Their fields in rows.
    """

    condition: Condition
    columns: tuple[Column, ...]
    fields: tuple[str, ...]
    _evaluator: Evaluator = field(repr=False, compare=False)

    def evaluate(self, rows: pa.StructArray | pa.RecordBatch) -> pa.BooleanArray:
        """Return the answer for each row; null is unknown, and so is the answer for a row that is null.

        Args:
            rows: With the fields of `TableSchema.row_type`; those of `fields` are enough.

        Raises:
            ValueError: A field is missing or has another type.
        """
        import pyarrow.compute as pc

        shape = rows.type if isinstance(rows, pa.StructArray) else rows.schema
        for column, name in zip(self.columns, self.fields, strict=True):
            index = shape.get_field_index(name)
            if index < 0 or shape.field(index).type != column.type:
                raise ValueError(
                    f"The rows have no field {name} of type {column.type}, which the condition was bound to."
                )
        if isinstance(rows, pa.RecordBatch):
            return self._evaluator({name: rows.column(name) for name in self.fields})
        answers = self._evaluator({name: pc.struct_field(rows, name) for name in self.fields})
        return pc.if_else(rows.is_valid(), answers, pa.scalar(None, pa.bool_())) if rows.null_count else answers


def bind(condition: Condition, schema: TableSchema) -> BoundCondition:
    """Bind a condition; ConditionError with every fault if it is impossible."""
    binder = _Binder(condition, schema)
    evaluator = binder.evaluator(condition.term)
    if binder.faults:
        raise ConditionError(sorted(set(binder.faults), key=lambda fault: fault.position))
    columns = tuple(column for column in schema.columns if column.name in binder.used)
    return BoundCondition(
        condition=condition,
        columns=columns,
        fields=tuple(schema.fields[column.name] for column in columns),
        _evaluator=evaluator,
    )


class _Binder:
    """Makes evaluators of terms, and collects the faults and the columns."""

    def __init__(self, condition: Condition, schema: TableSchema) -> None:
        from replicator.projection.condition import evaluating

        self.faults: list[Fault] = []
        self.used: set[str] = set()
        self._condition = condition
        self._schema = schema
        self._evaluating = evaluating

    def evaluator(self, term: Term) -> Evaluator:
        """Return the evaluator of a term; of one with faults it is something that is never called."""
        match term:
            case Not():
                return partial(self._evaluating.negation, evaluator=self.evaluator(term.term))
            case Joined():
                join = self._evaluating.every if term.word == "AND" else self._evaluating.some
                return partial(join, evaluators=list(map(self.evaluator, term.terms)))
            case Predicate():
                return self._test(term.operator, *term.operands)

    def _test(self, operator: Operator, first: Operand, *others: Operand) -> Evaluator:
        if operator is Operator.BETWEEN:
            low = self._comparison(Operator.GREATER_EQUAL, first, others[0])
            high = self._comparison(Operator.LESS_EQUAL, first, others[1])
            return partial(self._evaluating.every, evaluators=[low, high])
        if operator not in _OF_ONE_COLUMN:
            return self._comparison(operator, first, others[0])
        assert isinstance(first, Name)
        column = self._column(first)
        if column is None:
            return _never
        literals = [other for other in others if isinstance(other, Literal)]
        match operator:
            case Operator.IN:
                return self._one_of(first, column, literals)
            case Operator.LIKE:
                return self._like(first, column, literals)
            case Operator.IS_TRUE if not self._has_family(first, column, Family.TRUTH, "Compare it with a value."):
                return _never
            case Operator.IS_TRUE:
                return partial(self._evaluating.is_true, field=self._field(column))
            case _:
                return partial(self._evaluating.is_null, field=self._field(column))

    def _comparison(self, operator: Operator, left: Operand, right: Operand) -> Evaluator:
        match left, right:
            case Name(), Name():
                return self._columns_compared(operator, left, right)
            case Name(), Literal():
                return self._value_compared(operator, left, right)
            case Literal(), Name():
                return self._value_compared(operator.turned, right, left)
        raise AssertionError("two values")

    def _columns_compared(self, operator: Operator, left: Name, right: Name) -> Evaluator:
        column, other = self._column(left), self._column(right)
        if column is None or other is None:
            return _never
        type_ = values.common(column.type, other.type)
        if type_ is None:
            message = f"Columns of type {_spelled(column)} and {_spelled(other)} are not compared."
            self._note(left, message, "Compare each with a value.")
            return _never
        return partial(
            self._evaluating.compare,
            operator=operator,
            field=self._field(column),
            other=self._field(other),
            type_=type_,
        )

    def _value_compared(self, operator: Operator, name: Name, literal: Literal) -> Evaluator:
        column = self._column(name)
        if column is None:
            return _never
        if not self._is_comparable(name, column):
            return _never
        if literal.kind is LiteralKind.NULL:
            return self._constant(column, None)
        value = self._value(column, literal)
        if value is None:
            return _never
        if family(column.type) is Family.EXACT:
            bounded = values.bounded(operator, value, column.type)
            if isinstance(bounded, bool):
                return self._constant(column, bounded)
            operator, value = bounded
        scalar = values.scalar(value, column.type)
        return partial(
            self._evaluating.compare, operator=operator, field=self._field(column), other=scalar, type_=scalar.type
        )

    def _one_of(self, name: Name, column: Column, literals: Sequence[Literal]) -> Evaluator:
        if not self._is_comparable(name, column):
            return _never
        found = [self._value(column, literal) for literal in literals if literal.kind is not LiteralKind.NULL]
        if any(value is None for value in found):
            return _never
        if family(column.type) is Family.EXACT:
            wholes = (values.whole(value, column.type) for value in found)
            found = [value for value in wholes if value is not None]
        type_ = pa.float64() if pa.types.is_floating(column.type) else column.type
        return partial(
            self._evaluating.is_one_of,
            field=self._field(column),
            values=pa.array([values.scalar(value, column.type) for value in found], type_),
            has_null=any(literal.kind is LiteralKind.NULL for literal in literals),
        )

    def _like(self, name: Name, column: Column, literals: Sequence[Literal]) -> Evaluator:
        if not self._has_family(name, column, Family.TEXT, "LIKE takes a column of text."):
            return _never
        expression = self._evaluating.expression_of(*(str(literal.value) for literal in literals))
        return partial(self._evaluating.matches, field=self._field(column), expression=expression)

    def _constant(self, column: Column, answer: bool | None) -> Evaluator:
        return partial(self._evaluating.constant, field=self._field(column), answer=answer)

    def _value(self, column: Column, literal: Literal) -> Any:
        """Return the literal's value for the column; None, and a fault, if it has none."""
        try:
            return values.fitted(literal, column.type)
        except Misfit as misfit:
            message = str(misfit) or f"This is no value for the column {column.name}, whose type is {_spelled(column)}."
            self._note(literal, message, f"Write {family(column.type)}.")
            return None

    def _is_comparable(self, name: Name, column: Column) -> bool:
        if family(column.type) is not Family.LIST:
            return True
        self._note(name, f"The column {column.name} is a list.", "Use IS NULL, or IS NOT NULL.")
        return False

    def _has_family(self, name: Name, column: Column, wanted: Family, remedy: str) -> bool:
        if family(column.type) is wanted:
            return True
        self._note(name, f"The type of the column {column.name} is {_spelled(column)}.", remedy)
        return False

    def _field(self, column: Column) -> str:
        return self._schema.fields[column.name]

    def _column(self, name: Name) -> Column | None:
        """Return the column that a name means: written in quotes that one alone, else without case."""
        columns = self._schema.columns
        found = [c for c in columns if c.name == name.text]
        if not name.is_quoted:
            found = [c for c in columns if c.name.casefold() == name.text.casefold()]
        if len(found) == 1:
            self.used.add(found[0].name)
            return found[0]
        if found:
            spellings = " or ".join(str(Name(c.name, is_quoted=True)) for c in found)
            self._note(name, f"Several columns of {self._schema.table} are called {name.text}.", f"Write {spellings}.")
        else:
            self._note(name, f"{self._schema.table} has no column {name.text}.", self._nearest(name, columns))
        return None

    def _nearest(self, name: Name, columns: Sequence[Column]) -> str:
        if any(c.name.casefold() == name.text.casefold() for c in columns):
            return "In quotes a name is compared with case; without them it is not."
        if name.is_quoted:
            return f"If a text is meant, write {Literal(LiteralKind.TEXT, name.text)}."
        similar = get_close_matches(name.text, [c.name for c in columns])
        return f"Did you mean {' or '.join(similar)}?" if similar else "Write the name as the source has it."

    def _note(self, operand: Operand, message: str, remedy: str) -> None:
        self.faults.append(self._condition.fault(operand.at, message, remedy))


def _spelled(column: Column) -> str:
    return f"{type_to_text(column.type)} ({column.source_type})"


def _never(columns: Columns) -> pa.BooleanArray:  # noqa: ARG001
    raise AssertionError("a term with faults is not evaluated")
