"""Methods of the types of .NET: `x.ToString()` and `geometry::Parse(…)` as functions of `sql/07_clr_types.sql`."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from replicator_testbed.sqlserver.outcomes import SqlError

_METHODS: Final = frozenset({"ToString", "GetLevel", "AsBinaryZM", "STAsBinary", "AsTextZM", "STAsText"})
_PROPERTIES: Final = frozenset({"STSrid"})
_STATIC: Final = frozenset(
    {
        *("geometry::STGeomFromText", "geography::STGeomFromText", "geography::Point"),
        *("hierarchyid::Parse", "hierarchyid::GetRoot"),
    }
)
"""Their names are compared with case, as .NET does it [K]."""
_BY_NAME: Final = {name.lower(): name for name in _METHODS}


def as_functions(tree: exp.Expression) -> exp.Expression:
    """A statement with functions in place of methods.

    Raises:
        SqlError: 6506, there is no such method, or the model has none.
    """
    for node in list(tree.find_all(exp.ScopeResolution, exp.Dot, exp.Column)):
        made = _static(node) if isinstance(node, exp.ScopeResolution) else _called(node)
        if made is None:
            continue
        if node is tree:
            return made
        node.replace(made)
    return tree


def _static(node: exp.ScopeResolution) -> exp.Expression:
    call = node.expression
    name = f"{node.name.lower()}::{call.name}"
    if name not in _STATIC:
        raise SqlError(6506, f"Could not find method '{call.name}' for type '{node.name}', or the model has none.")
    return _function(name, *call.expressions)


def _called(node: exp.Expression) -> exp.Expression | None:
    if isinstance(node, exp.Column):
        # A property looks like a column of a table that has the name of the column.
        is_property = node.name in _PROPERTIES and node.table
        return _function(node.name, exp.Column(this=node.args["table"].copy())) if is_property else None
    call = node.expression
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in _BY_NAME:
        return None
    if call.name not in _METHODS:
        raise SqlError(6506, f"Could not find method '{call.name}' for type 'Microsoft.SqlServer.Types'.")
    return _function(call.name, _as_column(node.this), *call.expressions)


def _as_column(value: exp.Expression) -> exp.Expression:
    """What stands in front of the dot: a name, which sqlglot does not take for a column there, or an expression."""
    if isinstance(value, exp.Identifier):
        return exp.Column(this=value.copy())
    if isinstance(value, exp.Dot) and isinstance(value.this, exp.Identifier):
        return exp.Column(this=value.expression.copy(), table=value.this.copy())
    return value.copy()


def _function(name: str, *arguments: exp.Expression) -> exp.Expression:
    call = exp.Anonymous(this=exp.to_identifier(name, quoted=True), expressions=list(arguments))
    return exp.Dot(this=exp.to_identifier("sqlserver"), expression=call)
