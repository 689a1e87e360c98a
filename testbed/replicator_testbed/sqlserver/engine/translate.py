"""T-SQL queries and changes of rows as PostgreSQL's SQL: sqlglot parses, this module settles what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.engine import clr_methods, conversions
from replicator_testbed.sqlserver.engine.encodings import Encodings
from replicator_testbed.sqlserver.engine.names import Names, TableFacts, unbracketed
from replicator_testbed.sqlserver.engine.types import NUL
from replicator_testbed.sqlserver.outcomes import Bound, SqlError
from replicator_testbed.sqlserver.sqltypes import SqlType, TypeName

_SHARED: Final = frozenset({"READCOMMITTEDLOCK", "REPEATABLEREAD", "HOLDLOCK", "SERIALIZABLE"})
_EXCLUSIVE: Final = frozenset({"UPDLOCK", "XLOCK"})
_WITHOUT_EFFECT: Final = frozenset({"ROWLOCK", "PAGLOCK", "READCOMMITTED", "FORCESEEK", "FORCESCAN"})
_WHOLE_TABLE: Final = frozenset({"TABLOCK", "HOLDLOCK"})
"""A shared lock on the table until the transaction ends; TABLOCK alone is refused [DOC: table hints]."""
_REFUSED_WORDS: Final = frozenset(
    {"PERCENT", "TIES", "XML", "JSON", "PIVOT", "UNPIVOT", "APPLY", "CHANGETABLE", "OPENJSON"}
)
"""Words that sqlglot would drop or carry over without their meaning."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A statement for PostgreSQL.

    Attributes:
        sql: With $1, $2 … for its parameters.
        arguments: The parameters.
        names: Of the result's columns, as far as they are known; None for those that PostgreSQL names.
        locks: Tables that are locked as a whole, shared, until the transaction ends, before the statement reads.
        row_locks: The numbers of the tables whose rows are locked as they are read.
        mentions: Functions whose value a SNAPSHOT transaction must not see from its snapshot.
        tables: The numbers of the tables that it names.
    """

    sql: str
    arguments: tuple[Bound, ...] = ()
    names: tuple[str | None, ...] = ()
    locks: tuple[str, ...] = ()
    row_locks: frozenset[int] = frozenset()
    mentions: frozenset[str] = field(default_factory=frozenset)
    tables: frozenset[int] = field(default_factory=frozenset)


_ARGUMENTS_MAX: Final = 100
"""Of a function of PostgreSQL. CONCAT takes 254 [DOC: CONCAT]."""
_CONCAT_MAX: Final = 254

NodeT = TypeVar("NodeT", bound=exp.Expression)
Globals = Mapping[str, exp.Expression]
"""Values of @@ROWCOUNT and the like, by name in capitals without the signs."""


_TOP: Final = "top"
_TOP_OF_CHANGE: Final = re.compile(r"\s*(UPDATE|DELETE)\s+TOP\s*\((\d+)\)", re.IGNORECASE)
"""sqlglot reads TOP in a SELECT only."""


class Translator:
    """Translates the statements of one session."""

    def __init__(self, *, make_type: Callable[[SqlType], None], check: Callable[[str, TableFacts], None]) -> None:
        """Begin; `make_type` makes sure that PostgreSQL has a type, `check` refuses what the user may not do with a table."""
        self._make_type = make_type
        self._check = check

    def translate(
        self, text: str, names: Names, variables: Mapping[str, Bound], globals_: Globals, *, locks_all: bool = False
    ) -> Translated:
        """Translate a SELECT, INSERT, UPDATE, DELETE or MERGE.

        Args:
            text: One statement.
            names: The catalogue.
            variables: By name in small letters.
            globals_: Of the session.
            locks_all: Every table is read with shared locks, as READ COMMITTED does without row versions.

        Raises:
            SqlError: It cannot be read, or means something that the model does not have.
        """
        tree = _parse(text)
        run = _Run(tree, names, variables, globals_, self._make_type, self._check, locks_all=locks_all)
        return run.finish()


class _Run:
    """One translation."""

    def __init__(
        self,
        tree: exp.Expression,
        names: Names,
        variables: Mapping[str, Bound],
        globals_: Globals,
        make_type: Callable[[SqlType], None],
        check: Callable[[str, TableFacts], None],
        *,
        locks_all: bool,
    ) -> None:
        self._tree = tree
        self._names = names
        self._variables = variables
        self._globals = globals_
        self._make_type = make_type
        self._check = check
        self._locks_all = locks_all
        self._arguments: list[Bound] = []
        self._nodes: tuple[exp.Expression, ...] = ()
        self._columns: dict[str, str] = {}
        self._encodings = Encodings()
        self._mentions: set[str] = set()
        self._numbers: set[int] = set()
        self._table_locks: list[str] = []
        self._row_locks: set[int] = set()

    def finish(self) -> Translated:
        tree = self._tree
        tree.set("options", None)
        for select in list(tree.find_all(exp.Select)):
            select.set("options", None)
        self._tree = tree = clr_methods.as_functions(tree)
        # Walked through once: what follows gives nodes other names, and adds only what is of no interest to it.
        self._nodes = tuple(tree.find_all(exp.Expression))
        target = self._tables()
        self._own_names()
        aliases = frozenset(t.alias for t in self._all(exp.Table, exp.Subquery, exp.CTE) if t.alias)
        for node in self._all(exp.Column):
            self._column(node, aliases)
        self._tree = tree = self._rewritten(tree)
        if target is not None:
            self._assignments(target)
        self._top(tree)
        self._parenthesise()
        names = _result_names(tree)
        try:
            # Nobody needs the tree afterwards, and copying it takes as long as parsing it.
            sql = tree.sql("postgres", copy=False, unsupported_level=ErrorLevel.RAISE, normalize_functions=False)
        except SqlglotError as unsupported:
            raise SqlError(40510, f"The model does not translate this statement: {unsupported}") from unsupported
        return Translated(
            sql,
            tuple(self._arguments),
            names,
            locks=tuple(self._table_locks),
            row_locks=frozenset(self._row_locks),
            mentions=frozenset(self._mentions),
            tables=frozenset(self._numbers),
        )

    def _all(self, *kinds: type[NodeT]) -> list[NodeT]:
        """The statement's nodes of these kinds, from the root down."""
        return [node for node in self._nodes if isinstance(node, kinds)]

    # -- names -----------------------------------------------------------------------------------------------------

    def _tables(self) -> TableFacts | None:
        """Qualify and lock tables; the table that a statement changes."""
        target = _target(self._tree)
        found: TableFacts | None = None
        known = {cte.alias.lower() for cte in self._all(exp.CTE)}
        aliases = {t.alias.lower(): t for t in self._all(exp.Table) if t.alias}
        for table in self._all(exp.Table):
            self._alias(table)
            if isinstance(table.this, (exp.Anonymous, exp.Func)):
                continue
            name = table.name
            if not table.db and (name.lower() in known or (table is target and name.lower() in aliases)):
                table.set("this", exp.to_identifier(name.lower(), quoted=True))
                if table is target and name.lower() in aliases:
                    named = aliases[name.lower()]
                    found = self._names.table(self._names.schema(named.catalog, named.db), named.name)
                continue
            facts = self._names.table(self._names.schema(table.catalog, table.db), name)
            self._check(self._permission() if table is target else "SELECT", facts)
            if facts.is_table:
                self._numbers.add(facts.oid)
            for column in facts.columns.values():
                self._columns.setdefault(column.name.lower(), column.name)
                self._encodings.note_column(column.name, column.type)
            alias = table.args.get("alias")
            table.set("this", exp.to_identifier(facts.name, quoted=True))
            table.set("db", exp.to_identifier(facts.schema, quoted=True))
            table.set("catalog", None)
            table.set("alias", alias)
            self._lock(table, facts)
            if table is target:
                found = facts
        return found

    def _top(self, tree: exp.Expression) -> None:
        """UPDATE TOP (n) and DELETE TOP (n): any n of the rows."""
        if (count := tree.meta.get(_TOP)) is None:
            return
        where = tree.args.get("where")
        one = exp.Column(this=exp.to_identifier("ctid", quoted=True))
        rows = exp.select(one.copy()).from_(tree.this.copy()).limit(count)
        if where is not None:
            rows = rows.where(where.this.copy())
        tree.set("where", exp.Where(this=exp.In(this=one, query=exp.Subquery(this=rows))))

    def _permission(self) -> str:
        """What the statement does with the table that it changes."""
        return {exp.Insert: "INSERT", exp.Delete: "DELETE"}.get(type(self._tree), "UPDATE")

    def _alias(self, table: exp.Table) -> None:
        if table.alias:
            columns = table.args["alias"].args.get("columns")
            table.set(
                "alias", exp.TableAlias(this=exp.to_identifier(table.alias.lower(), quoted=True), columns=columns)
            )

    def _own_names(self) -> None:
        """Aliases of columns, of derived tables and of common table expressions: what the statement itself names."""
        for alias in self._all(exp.Alias):
            self._columns.setdefault(alias.alias.lower(), alias.alias)
            alias.set("alias", exp.to_identifier(alias.alias, quoted=True))
        for node in (*self._all(exp.Subquery), *self._all(exp.CTE)):
            if node.alias:
                given = node.args["alias"]
                for column in given.args.get("columns") or ():
                    self._columns.setdefault(column.name.lower(), column.name)
                    column.set("quoted", True)
                given.set("this", exp.to_identifier(node.alias.lower(), quoted=True))

    def _column(self, column: exp.Column, aliases: frozenset[str]) -> None:
        table = column.table
        if table.lower() in {"inserted", "deleted"}:
            if isinstance(self._tree, exp.Update) and table.lower() == "deleted":
                raise SqlError(40510, "The model has no OUTPUT of the values before an UPDATE.")
            column.set("table", None)
            column.set("db", None)
        elif table:
            facts = self._names.find(column.db or "dbo", table)
            known = facts.name if facts is not None and table.lower() not in aliases else table.lower()
            column.set("table", exp.to_identifier(known, quoted=True))
            column.set("db", None)
        if isinstance(column.this, exp.Identifier):
            name = self._columns.get(column.name.lower(), column.name)
            column.set("this", exp.to_identifier(name, quoted=True))

    def _lock(self, table: exp.Table, facts: TableFacts) -> None:
        hints = {hint.name.upper() for one in table.args.get("hints") or () for hint in one.expressions}
        table.set("hints", None)
        if hints == _WHOLE_TABLE:
            self._table_locks.append(facts.reference)
            return
        unknown = hints - _SHARED - _EXCLUSIVE - _WITHOUT_EFFECT - {"READPAST", "NOWAIT"}
        if unknown:
            raise SqlError(
                40510, f"The model has no table hint {', '.join(sorted(unknown))}: it cannot show what that would read."
            )
        is_read = isinstance(table.parent, (exp.From, exp.Join))
        locks = bool(hints & (_SHARED | _EXCLUSIVE)) or (self._locks_all and facts.is_table and facts.schema != "cdc")
        select = table.find_ancestor(exp.Select)
        if not (locks and is_read and select is not None):
            return
        if (
            self._locks_all
            and not hints
            and (select.args.get("group") or select.find(exp.AggFunc) or select.args.get("distinct"))
        ):
            return
        self._row_locks.add(facts.oid)
        name = exp.to_identifier(table.alias or facts.name, quoted=True)
        wait = False if "NOWAIT" in hints else None
        lock = exp.Lock(update=bool(hints & _EXCLUSIVE), expressions=[exp.Table(this=name)], wait=wait)
        select.set("locks", [*(select.args.get("locks") or ()), lock])

    # -- values ----------------------------------------------------------------------------------------------------

    def _rewritten(self, node: exp.Expression) -> exp.Expression:
        """A node with everything in it rewritten, from the leaves up. What a text's bytes are is noted before that is forgotten."""
        if not isinstance(node, exp.Parameter):
            for key, value in list(node.args.items()):
                if isinstance(value, exp.Expression):
                    node.set(key, self._rewritten(value))
                elif isinstance(value, list):
                    node.set(key, [self._rewritten(v) if isinstance(v, exp.Expression) else v for v in value])
        encoding = self._encodings.of(node)
        found = self._node(node)
        self._encodings.note(found, encoding)
        return found

    def _node(self, node: exp.Expression) -> exp.Expression:  # noqa: C901, PLR0911, PLR0912 - one case for each node
        match node:
            case exp.National():
                return exp.Literal.string(node.name)
            case exp.HexString():
                return conversions.bytes_literal(node.name)
            case exp.Parameter():
                return self._parameter(node)
            case exp.TryCast():
                raise SqlError(40510, "The model has no TRY_CAST and no TRY_CONVERT.")
            case exp.Convert():
                if node.args.get("safe"):
                    raise SqlError(40510, "The model has no TRY_CAST and no TRY_CONVERT.")
                style = node.args.get("style")
                return self._cast(node.args["expression"], node.this, int(style.name) if style is not None else 0)
            case exp.Cast():
                return self._cast(node.this, node.to, 0)
            case exp.Collate():
                return exp.Collate(this=node.this, expression=_collation(node.expression.name))
            case exp.Like():
                return exp.Anonymous(this="sqlserver.is_like", expressions=[node.this, node.expression])
            case exp.Escape() if isinstance(node.this, exp.Anonymous):
                return exp.Anonymous(this="sqlserver.is_like", expressions=[*node.this.expressions, node.expression])
            case exp.SHA2():
                return _function("hashbytes", node.this)
            case exp.DateDiff():
                return _difference(node)
            case exp.Anonymous() if node.name.upper() == "DATALENGTH":
                return self._encodings.length(node.expressions[0])
            case exp.Chr() | exp.Anonymous(this="NCHAR"):
                (code,) = node.expressions
                return exp.Literal.string(NUL) if code.is_int and int(code.name) == 0 else exp.Chr(expressions=[code])
            case exp.Length():
                return exp.Anonymous(this="len", expressions=[node.this])
            case exp.Concat() if len(node.expressions) > _ARGUMENTS_MAX:
                return _concatenated(node)
            case exp.Uuid():
                return exp.Anonymous(this="newid")
            case exp.CurrentTimestamp():
                return exp.Anonymous(this="getdate")
            case exp.Anonymous():
                self._mentions.add(node.name.lower())
                return node
            case _:
                return node

    def _parameter(self, node: exp.Parameter) -> exp.Expression:
        if isinstance(node.this, exp.Parameter):
            name = node.this.name.upper()
            if name not in self._globals:
                raise SqlError(137, f'Must declare the scalar variable "@@{name}".', state=2, severity=15)
            return self._globals[name].copy()
        if node.this.is_int:
            return node
        name = f"@{node.name}"
        bound = self._variables.get(name.lower())
        if bound is None:
            raise SqlError(137, f'Must declare the scalar variable "{name}".', state=2, severity=15)
        self._arguments.append(bound)
        placeholder = exp.Parameter(this=exp.Literal.number(len(self._arguments)))
        if bound.type is not None and bound.type.is_cast_on_use:
            self._make_type(bound.type)
            return exp.Cast(this=placeholder, to=conversions.data_type(bound.type))
        return placeholder

    def _cast(self, value: exp.Expression, to: exp.DataType, style: int) -> exp.Expression:
        kind = _sql_type(to)
        self._make_type(kind)
        if kind.name in {TypeName.BINARY, TypeName.VARBINARY} and not style:
            value = self._encodings.bytes(value)
        return conversions.cast(value, kind, style=style)

    # -- statements ------------------------------------------------------------------------------------------------

    def _assignments(self, table: TableFacts) -> None:
        tree = self._tree
        if isinstance(tree, exp.Update):
            for equal in tree.args["expressions"]:
                column = table.columns.get(equal.this.name.lower())
                equal.set("expression", conversions.assigned(equal.expression, column.type if column else None))
                equal.set("this", exp.to_identifier(column.name if column else equal.this.name, quoted=True))
        if isinstance(tree, exp.Insert):
            self._inserted(tree, table)
        if isinstance(tree, exp.Delete) and not tree.this:
            tree.set("this", tree.args.pop("tables")[0])

    def _inserted(self, tree: exp.Insert, table: TableFacts) -> None:
        columns = [c for c in table.columns.values() if not (c.is_identity or c.is_computed)]
        if isinstance(tree.this, exp.Schema):
            wanted = [table.columns.get(name.name.lower()) for name in tree.this.expressions]
            for name in tree.this.expressions:
                if name.name.lower() not in table.columns:
                    raise SqlError(207, f"Invalid column name '{name.name}'.")
            columns = [column for column in wanted if column is not None]
        named = [exp.to_identifier(column.name, quoted=True) for column in columns]
        tree.set("this", exp.Schema(this=_bare(tree.this), expressions=named))
        source = tree.expression
        rows = (
            source.expressions if isinstance(source, exp.Values) else [source] if isinstance(source, exp.Select) else []
        )
        for row in rows:
            values = row.expressions
            if any(isinstance(value, exp.Star) for value in values):
                continue
            if len(values) != len(columns):
                raise SqlError(213, "Column name or number of supplied values does not match table definition.")
            converted = [
                value if isinstance(value, exp.Alias) else conversions.assigned(value, column.type)
                for value, column in zip(values, columns, strict=True)
            ]
            row.set("expressions", converted)

    def _parenthesise(self) -> None:
        """A part of a UNION that has a limit is a query of its own."""
        for union in list(self._tree.find_all(exp.SetOperation)):
            for side in ("this", "expression"):
                part = union.args[side]
                if isinstance(part, exp.Select) and part.args.get("locks"):
                    # PostgreSQL locks no rows in a part of a UNION, but in a derived table there.
                    derived = exp.Subquery(this=part, alias=exp.TableAlias(this=exp.to_identifier("part", quoted=True)))
                    union.set(side, exp.Select(expressions=[exp.Star()], from_=exp.From(this=derived)))
                elif isinstance(part, exp.Select) and part.args.get("limit"):
                    union.set(side, exp.Subquery(this=part))


def _parse(text: str) -> exp.Expression:
    words = {word.upper() for word in text.replace("(", " ").replace(")", " ").split()}
    if refused := words & _REFUSED_WORDS:
        raise SqlError(40510, f"The model does not know {', '.join(sorted(refused))} in a query.")
    top = _TOP_OF_CHANGE.match(text)
    if top is not None:
        text = f"{top[1]} {text[top.end() :]}"
    try:
        trees = sqlglot.parse(text, read="tsql")
    except SqlglotError as wrong:
        raise SqlError(102, f"Incorrect syntax, as sqlglot reads it: {wrong}", severity=15) from wrong
    if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Command):
        raise SqlError(102, f"The model does not run: {text[:200]}", severity=15)
    tree = trees[0]
    assert isinstance(tree, exp.Expression)
    if top is not None:
        tree.meta[_TOP] = int(top[2])
    return tree


def _target(tree: exp.Expression) -> exp.Table | None:
    if isinstance(tree, exp.Delete) and tree.args.get("tables"):
        if tree.this:
            raise SqlError(40510, "The model has no DELETE with a FROM of its own.")
        tree.set("this", tree.args["tables"][0])
        tree.set("tables", None)
    if isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)):
        table = _bare(tree.this)
        return table if isinstance(table, exp.Table) else None
    return None


def _function(name: str, *arguments: exp.Expression) -> exp.Expression:
    call = exp.Anonymous(this=name, expressions=list(arguments))
    return exp.Dot(this=exp.to_identifier("sqlserver"), expression=call)


def _concatenated(node: exp.Concat) -> exp.Expression:
    """A CONCAT of many texts as one of CONCATs."""
    parts = node.expressions
    if len(parts) > _CONCAT_MAX:
        raise SqlError(189, f"The concat function requires 2 to {_CONCAT_MAX} arguments.", severity=15)
    blocks = [parts[start : start + _ARGUMENTS_MAX] for start in range(0, len(parts), _ARGUMENTS_MAX)]
    # `coalesce`: of NULL nothing is made.
    made = [exp.Concat(expressions=block, safe=True, coalesce=True) for block in blocks]
    return exp.Concat(expressions=made, safe=True, coalesce=True)


def _difference(node: exp.DateDiff) -> exp.Expression:
    """DATEDIFF of days, and DATEDIFF_BIG of microseconds: as DATEDIFF, those of more than 35 minutes overflow [DOC: DATEDIFF]."""
    unit = node.args["unit"].name.upper()
    one, other = (v.this if isinstance(v, exp.TimeStrToTime) else v for v in (node.expression, node.this))
    if unit == "DAY":
        return _function("days_between", one, other)
    if unit == "MICROSECOND" and node.args.get("big_int"):
        return _function("microseconds_between", one, other)
    raise SqlError(40510, f"The model has no DATEDIFF of {unit}.")


def _bare(node: exp.Expression) -> exp.Expression:
    inner = node.this
    return inner if isinstance(node, exp.Schema) and isinstance(inner, exp.Expression) else node


def _result_names(tree: exp.Expression) -> tuple[str | None, ...]:
    selects: Sequence[Any] = tree.selects if isinstance(tree, exp.Query) else ()
    names: list[str | None] = []
    for one in selects:
        if isinstance(one, exp.Star) or (isinstance(one, exp.Column) and isinstance(one.this, exp.Star)):
            return ()
        names.append(None if isinstance(one, (exp.Column, exp.Alias)) else "")
    return tuple(names)


def _sql_type(to: exp.DataType) -> SqlType:
    text = to.sql("tsql")
    try:
        return sqltypes.parse(text, in_cast=True)
    except sqltypes.UnknownTypeError as unknown:
        raise SqlError(unknown.number or 243, f"{unbracketed(text)} is not a defined type: {unknown}") from unknown


def _collation(name: str) -> exp.Expression:
    if name.lower() in {"database_default", "catalog_default"}:
        name = sqltypes.DEFAULT_COLLATION
    return exp.Dot(this=exp.to_identifier("sqlserver", quoted=True), expression=exp.to_identifier(name, quoted=True))
