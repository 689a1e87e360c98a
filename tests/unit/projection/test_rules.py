"""Settings of columns: how those of several patterns are combined, and what they make of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.config import Secret, TablesConfig
from replicator.config.secrets import Resolved
from replicator.model.errors import SchemaConflictError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.projection.checking import arriving, project_tables, unmatched_columns
from replicator.projection.columns import ProjectedColumn, Projection
from replicator.projection.rules import ColumnRules, rules_for

TABLE: Final = TableId("public", "people")


def schema(*names: str, key: tuple[str, ...] = ("id",), kind: pa.DataType | None = None) -> TableSchema:
    columns = [
        Column(name=name, type=pa.int64() if name == "id" else kind or pa.string(), source_type="text", id=position)
        for position, name in enumerate(names, start=1)
    ]
    return TableSchema(table=TABLE, columns=tuple(columns), key=key)


def rules(*blocks: Mapping[str, Any]) -> ColumnRules:
    """The rules of blocks of settings in this order, each under another pattern that matches the table."""
    patterns = ("*.*", "public.*", "*.people", "public.people")
    settings = TablesConfig(settings=dict(zip(patterns, blocks, strict=False))).settings
    return rules_for(TABLE, settings)


def hmac(key: str, *arguments: str) -> Resolved:
    return Resolved("", f"hmac(${{env:K}}{''.join(f', {a}' for a in arguments)})", [key])


def arrive(settings: ColumnRules, found: TableSchema, **more: Any) -> dict[str, str | None]:
    """What arrives: the mask of each column, `-` for those that are left out."""
    projection = Projection(columns=settings.project(found, **more))
    return {one.column: "-" if one.name is None else one.mask for one in arriving(found, projection)}


PEOPLE: Final = schema("id", "Email", "ssn", "note")


def test_exclusions_of_all_patterns_add_up() -> None:
    found = rules({"columns": {"exclude": ["SSN"]}}, {"columns": {"exclude": ["n*"]}}, {"mask": {"email": "sha256"}})
    assert arrive(found, PEOPLE) == {"id": None, "Email": "sha256", "ssn": "-", "note": "-"}


def test_inclusions_intersect_and_exclusions_hold_within_them() -> None:
    found = rules(
        {"columns": {"include": ["id", "e*", "ssn"]}},
        {"columns": {"include": ["*"]}},
        {"columns": {"exclude": ["ssn"]}},
    )
    assert arrive(found, PEOPLE) == {"id": None, "Email": None, "ssn": "-", "note": "-"}


@pytest.mark.parametrize(
    ("blocks", "mask"),
    [
        ([{"mask": {"email": "sha256"}}, {"mask": {"*": "redact"}}], "sha256"),
        ([{"mask": {"*": "redact"}}, {"mask": {"e*": "sha256"}}], "sha256"),
        ([{"mask": {"e*": "sha256"}}, {"mask": {"*l": "redact"}}], "redact"),
        ([{"mask": {"e*": "sha256"}}, {"mask": {"EMAIL": "clear"}}], None),
        ([{"mask": {"email": "clear"}}, {"mask": {"e*": "sha256"}}], None),
        ([{"mask": {"email": "clear"}}, {"mask": {"email": "redact"}}], "redact"),
        ([{"mask": {"email": "redact"}}, {}, {"deletes": "soft"}], "redact"),
        ([{"mask": {"*mail": None}}], "null"),
        ([{"mask": {"e\\*": "redact"}}], None),
    ],
)
def test_a_name_beats_a_pattern_and_then_the_later_one_wins(blocks: list[Mapping[str, Any]], mask: str | None) -> None:
    assert arrive(rules(*blocks), replace(PEOPLE, key=()))["Email"] == mask


@pytest.mark.parametrize(
    ("blocks", "arrives"),
    [
        ([{}], True),
        ([{"new_columns": "exclude"}], False),
        ([{"new_columns": "exclude"}, {"new_columns": "include"}], False),
        ([{"columns": {"include": ["*"]}}], False),
        ([{"columns": {"include": ["*"]}, "new_columns": "include"}], True),
        ([{"columns": {"include": ["id", "email", "extra"]}}], True),
        ([{"columns": {"exclude": ["ssn"]}}], True),
        ([{"columns": {"exclude": ["ex*"]}}], False),
    ],
)
def test_new_columns(blocks: list[Mapping[str, Any]], arrives: bool) -> None:
    settings = rules(*blocks)
    before = settings.project(PEOPLE)
    later = schema("id", "Email", "ssn", "note", "extra")
    assert (arrive(settings, later, before=before, known=PEOPLE)["extra"] is None) is arrives
    # It stays out when the table is read as a whole again.
    then = settings.project(later, before=before, known=PEOPLE)
    assert (arrive(settings, later, before=then, known=None)["extra"] is None) is arrives


def test_the_target_has_other_types_names_and_no_comments_of_masked_columns() -> None:
    settings = rules({"mask": {"amount": "bucket(10)", "email": "redact"}, "rename": {"NOTE": "remark"}})
    source = TableSchema(
        table=TABLE,
        columns=(
            Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
            Column(name="amount", type=pa.int16(), source_type="smallint", nullable=False, comment="like 5"),
            Column(name="email", type=pa.string(), source_type="text", nullable=False),
            Column(name="note", type=pa.string(), source_type="text", comment="stays"),
        ),
        key=("id",),
    )
    shape = Projection(columns=settings.project(source)).in_target(source)
    assert [(c.name, str(c.type), c.nullable, c.comment) for c in shape.columns] == [
        ("id", "int64", False, None),
        ("amount", "int64", True, None),
        ("email", "string", True, None),
        ("remark", "string", True, "stays"),
    ]


def test_a_renamed_key_is_the_key() -> None:
    source = schema("id", "note")
    shape = Projection(columns=rules({"rename": {"id": "number"}}).project(source)).in_target(source)
    assert shape.key == ("number",)


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ({"columns": {"exclude": ["id"]}}, "key_excluded"),
        ({"columns": {"include": ["note"]}}, "key_excluded"),
        ({"mask": {"i*": "sha256"}}, "key_masked"),
        ({"mask": {"note": "bucket(5)"}}, "mask_does_not_fit"),
    ],
)
def test_what_cannot_be_projected_is_refused(block: Mapping[str, Any], code: str) -> None:
    with pytest.raises(SchemaConflictError) as refused:
        rules(block).project(PEOPLE)
    assert (refused.value.code, refused.value.table) == (code, "public.people")
    assert refused.value.action
    (problem,) = project_tables([PEOPLE], lambda _: rules(block)).problems
    assert problem.code == code


def test_another_key_under_the_same_id_is_refused() -> None:
    first = rules({"mask": {"email": hmac("0123456789abcdef", "id=a")}})
    before = first.project(PEOPLE)
    with pytest.raises(SchemaConflictError, match="another one") as refused:
        rules({"mask": {"email": hmac("fedcba9876543210", "id=a")}}).project(PEOPLE, before=before, known=PEOPLE)
    assert refused.value.code == "mask_key_changed"
    for arguments, keys in (
        (("id=b",), ["fedcba9876543210"]),
        (("id=a", "was=${env:OLD}"), ["fedcba9876543210", "0123456789abcdef"]),
    ):
        written = f"hmac(${{env:K}}, {', '.join(arguments)})"
        found = rules({"mask": {"email": Resolved("", written, keys)}}).project(PEOPLE, before=before, known=PEOPLE)
        assert found[0].key != before[0].key


def test_keys_are_nowhere_in_what_is_stored_or_shown() -> None:
    key = "0123456789abcdef"
    settings = rules({"mask": {"email": hmac(key, "id=a")}})
    stored = settings.project(PEOPLE)
    assert key not in f"{settings!r} {stored!r}"
    assert stored == (ProjectedColumn(column="Email", mask="hmac(id=a)", key=stored[0].key, type="string"),)
    assert Secret(key) == settings.masks[0][1].key


@pytest.mark.parametrize(
    ("old", "new", "is_lost"),
    [
        ("email", "mail", True),
        ("email", "e_mail", False),
        ("ssn", "number", True),
        ("ssn", "ssn2", False),
        ("note", "remark", False),
        ("note", "ssn3", True),
        ("email", "shown", False),
    ],
)
def test_a_rename_that_changes_how_a_column_is_treated_is_lost(old: str, new: str, is_lost: bool) -> None:
    settings = rules({"columns": {"exclude": ["ssn*"]}, "mask": {"e*": "sha256", "shown": "clear"}})
    if not is_lost:
        settings.refuse_rename(TABLE, old, new)
        return
    with pytest.raises(SchemaConflictError) as refused:
        settings.refuse_rename(TABLE, old, new)
    assert refused.value.code == "projection_lost"


@pytest.mark.parametrize(("old", "new"), [("email", "shown"), ("ssn", "Short"), ("short", "shown"), ("shown", "short")])
def test_what_is_said_of_another_column_s_name_allows_no_rename(old: str, new: str) -> None:
    settings = rules({"columns": {"exclude": ["ssn"]}, "mask": {"e*": "sha256", "short": "last(2)", "shown": "clear"}})
    settings.refuse_rename(TABLE, old, new)
    with pytest.raises(SchemaConflictError, match="another column") as refused:
        settings.refuse_rename(TABLE, old, new, ["id", "short", "shown"])
    assert refused.value.code == "projection_lost"


def test_a_column_that_stays_out_as_a_new_one_stays_out_under_another_name() -> None:
    settings = rules({"new_columns": "exclude"})
    known, added = schema("id", "a"), schema("id", "a", "token")
    before = settings.project(added, known=known)
    assert arrive(settings, schema("id", "a", "b"), before=before, known=added) == {"id": None, "a": None, "b": "-"}
    # Another column that gets its name arrives as before.
    assert arrive(settings, schema("id", "token"), before=before, known=added) == {"id": None, "token": None}


def test_names_that_no_table_has_are_told() -> None:
    settings = TablesConfig(
        settings={
            "*.people": {"mask": {"emial": "sha256", "no*": "redact"}, "rename": {"ssm": "x"}},
            "*.other": {"mask": {"y": None}},
        }
    ).settings
    found = list(unmatched_columns([PEOPLE], settings))
    assert [(p.code, p.message, p.action) for p in found] == [
        ("column_without_match", "No table that *.people matches has a column emial.", "Did you mean Email?"),
        ("column_without_match", "No table that *.people matches has a column ssm.", "Did you mean ssn?"),
    ]


def test_a_table_of_which_nothing_is_left_is_refused() -> None:
    found = project_tables([replace(PEOPLE, key=())], lambda _: rules({"columns": {"exclude": ["*"]}}))
    assert [problem.code for problem in found.problems] == ["all_columns_excluded"]
    assert found.shapes == []
