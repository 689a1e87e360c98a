"""A rule: what can be wrong under one code, the text that says so, the next step, and its row in `docs/errors.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

from replicator.model.errors import Problem, ReplicatorError, Severity

ErrorT = TypeVar("ErrorT", bound=ReplicatorError)
_SEVERITIES: Final[Mapping[frozenset[Severity], str]] = {
    frozenset({Severity.BLOCKING}): "finding",
    frozenset({Severity.WARNING}): "finding (warning)",
    frozenset({Severity.NOTICE}): "finding (notice)",
    frozenset({Severity.NOTICE, Severity.WARNING}): "finding (notice or warning)",
}
_FIELDS_OF_FINDINGS: Final = frozenset({"location", "applies", "is_access"})


class Texts(TypedDict, total=False):
    """Attributes of a `Rule` that a wording has next to its text."""

    action: str | None
    sql: tuple[str, ...]
    location: str | None
    applies: Literal["start", "always"]
    is_access: bool


_NO_TEXTS: Final = Texts(action=None, sql=(), location=None, applies="start", is_access=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What can be wrong under one code. The exception that is raised and the finding of `validate` have their text from it.

    Attributes:
        code: Stable; lower_snake_case.
        raises: Classes of the exceptions that have the code.
        found: Severities of the findings that have it; the first one unless a finding says otherwise. Empty: it is only raised.
        is_alarm: It is an alarm of a table.
        meaning: Explanation in `docs/errors.md`, in Markdown. It need not repeat the text.
        remedy: What to do, there.
        text: The message: facts, with `{fields}`. It begins with a capital letter and ends with a full stop.
        action: The next step, with `{fields}`.
        sql: Statements of a finding that fix it, with `{fields}`. See `Problem`.
        location: Of a finding: the setting. None: the finding says it, or it is the table.
        applies: See `Problem`.
        is_access: See `Problem`.
    """

    code: str
    raises: tuple[type[ReplicatorError], ...] = ()
    found: tuple[Severity, ...] = ()
    is_alarm: bool = False
    meaning: str
    remedy: str
    text: str = ""
    action: str | None = None
    sql: tuple[str, ...] = ()
    location: str | None = None
    applies: Literal["start", "always"] = "start"
    is_access: bool = False

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields in its texts."""
        texts = (self.text, self.action or "", self.location or "", *self.sql)
        return frozenset(name for text in texts for _, name, _, _ in Formatter().parse(text) if name)

    @property
    def bearers(self) -> str:
        """Classes of the errors that have the code, and `finding` or `alarm`, as `docs/errors.md` names them."""
        names = sorted(kind.__name__ for kind in self.raises)
        if self.found:
            names.append(_SEVERITIES.get(frozenset(self.found), "finding (blocking or less)"))
        return ", ".join([*names, "alarm"] if self.is_alarm else names)

    def worded(self, text: str, *, severity: Severity | None = None, **others: Unpack[Texts]) -> Rule:
        """Return another wording under the same code, for another cause."""
        found = self.found if severity is None else (severity,)
        return replace(self, text=text, found=found, **(_NO_TEXTS | others))

    def message(self, **fields: object) -> str:
        """Return the text."""
        return self.text.format(**fields)

    def next_step(self, **fields: object) -> str | None:
        """Return the action."""
        return None if self.action is None else self.action.format(**fields)

    def error(
        self, kind: type[ErrorT], /, *, table: str | None = None, action: str | None = None, **given: Any
    ) -> ErrorT:
        """Return the exception, to be raised.

        Args:
            kind: Its class, one of `raises`.
            table: The table concerned.
            action: A next step that is known only here, instead of the rule's.
            given: The fields of the texts; and further arguments of the class.
        """
        fields: dict[str, object] = {name: given.pop(name) for name in self.fields & given.keys()} | {"table": table}
        return kind(
            self.message(**fields), code=self.code, table=table, action=action or self.next_step(**fields), **given
        )

    def finding(
        self,
        *,
        table: str | None = None,
        action: str | None = None,
        sql: tuple[str, ...] | None = None,
        severity: Severity | None = None,
        **given: Any,
    ) -> Problem:
        """Return the finding.

        Args:
            table: The table concerned.
            action: A next step that is known only here, instead of the rule's.
            sql: Statements that are known only here.
            severity: Another than the first of `found`.
            given: The fields of the texts; and `location`, `applies` and `is_access` if they are not the rule's.
        """
        also = {name: given.pop(name) for name in _FIELDS_OF_FINDINGS & given.keys() - self.fields}
        fields: dict[str, object] = {"table": table, **given}
        own = {
            "location": None if self.location is None else self.location.format(**fields),
            "applies": self.applies,
            "is_access": self.is_access,
        }
        return Problem(
            code=self.code,
            message=self.message(**fields),
            table=table,
            action=action or self.next_step(**fields),
            sql=tuple(one.format(**fields) for one in self.sql) if sql is None else sql,
            severity=severity or self.found[0],
            **(own | also),
        )


@dataclass(slots=True)
class Section:
    """Rules of one subject, or of one plugin: a section of `docs/errors.md`.

    Attributes:
        title: Its heading.
        text: What stands before the table, in Markdown.
        rules: Its rules, in order, by code.
        notes: What a plugin adds to the rows of codes that it shares with others: rule, meaning, remedy.
    """

    title: str
    text: str = ""
    rules: dict[str, Rule] = field(default_factory=dict)
    notes: list[tuple[Rule, str, str]] = field(default_factory=list)

    def rule(
        self,
        code: str,
        *,
        raises: tuple[type[ReplicatorError], ...] = (),
        found: tuple[Severity, ...] = (),
        is_alarm: bool = False,
        meaning: str,
        remedy: str,
        text: str = "",
        **others: Unpack[Texts],
    ) -> Rule:
        """Add a rule and return it."""
        assert code not in self.rules, f"{code} is already a rule"
        self.rules[code] = made = Rule(
            code=code,
            raises=raises,
            found=found,
            is_alarm=is_alarm,
            meaning=meaning,
            remedy=remedy,
            text=text,
            **others,
        )
        return made

    def note(self, rule: Rule, *, meaning: str = "", remedy: str = "") -> None:
        """Add sentences to the row of a rule that several plugins share."""
        self.notes.append((rule, meaning, remedy))
