"""A file gives one immutable configuration, or every problem at once with line, path and remedy."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from replicator.config import LoadedConfig, load
from replicator.model.errors import ConfigError, Problem, Severity

from .models import ENV, GOOD, SECRET, SOURCES, TARGETS, SourceModel, TargetModel, load_text


def problems_in(text: str, **env: str) -> dict[str, Problem]:
    """Location (without the file's name) → problem."""
    with pytest.raises(ConfigError) as caught:
        load_text(text, **env)
    assert caught.value.problems
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return {(problem.location or "").removeprefix("shop.yaml:"): problem for problem in caught.value.problems}


def test_good_file_is_loaded_with_defaults() -> None:
    loaded = load_text(GOOD)
    assert loaded.document == GOOD
    assert loaded.config.name == "shop-to-lake"
    assert (loaded.config.apply.max_wait, loaded.config.retry.give_up_after) == (None, timedelta(hours=1))
    assert loaded.config.journal.bytes_max == 50 << 30
    assert (loaded.source_type, loaded.target_type) == ("postgresql", "delta")
    assert isinstance(loaded.source, SourceModel)
    assert loaded.source.password.reveal() == SECRET
    assert loaded.warnings == ()


@pytest.mark.parametrize("spelled", ["null", "'null'", "~"])
def test_null_among_the_words_to_choose_from_needs_no_quotes(spelled: str) -> None:
    loaded = load_text(GOOD.replace("/data/lake", f"/data/lake\n  unfit: {spelled}"))
    assert isinstance(loaded.target, TargetModel)
    assert loaded.target.unfit == "null"


def test_stored_document_loads_again_to_the_same() -> None:
    loaded = load_text(GOOD)
    again = load_text(loaded.document)
    assert (again.config, again.source, again.target) == (loaded.config, loaded.source, loaded.target)


def test_loaded_configuration_is_frozen() -> None:
    loaded = load_text(GOOD)
    with pytest.raises(ValidationError):
        loaded.config.name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        loaded.document = ""  # type: ignore[misc]


def test_design_example_is_accepted() -> None:
    loaded = load_text(
        GOOD
        + """\
tables:
  include: [public.*]
  exclude: [public.audit_log]
  settings:
    public.customers: {deletes: soft}
snapshot: {mode: initial, chunk_rows: 50000}
apply: {max_wait: 5s}
journal: {uri: /var/journal, bytes_max: 50GiB, keep: 24h}
ddl: {drop_table: ignore}
retry: {give_up_after: 1h}
spark: {master: "local[*]", settings: {spark.sql.shuffle.partitions: 4, spark.ui.enabled: false}}
"""
    )
    assert loaded.config.spark.settings == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}


def test_every_problem_of_every_block_is_reported_at_once_with_its_line() -> None:
    found = problems_in(
        """\
nam: x
name: Shop
source:
  type: postgresql
  hots: a
  port: 99999
  password: hunter2
  tls: verify-ful
  pool: {size: many}
target:
  type: delta
  path: 4
tables: {include: [a], settings: {a.b: {deletes: sof}}}
snapshot: initial
apply: {max_wait: 5, batch_bytes_max: 1KiB, tables_parallel: yes}
journal: {keep: 9999d, uri: "${env:NOPE}"}
retry: {backoff_initial: 10m}
spark: {master: }
"""
    )
    assert {location: problem.code for location, problem in found.items()} == {
        "1 nam": "unknown_key",
        "2 name": "invalid_value",
        "3 source.host": "missing_key",
        "5 source.hots": "unknown_key",
        "6 source.port": "out_of_bounds",
        "7 source.password": "literal_secret",
        "8 source.tls": "invalid_value",
        "9 source.pool.size": "wrong_type",
        "12 target.path": "wrong_type",
        "13 tables.include[0]": "invalid_value",
        '13 tables.settings["a.b"].deletes': "invalid_value",
        "14 snapshot": "wrong_type",
        "15 apply.max_wait": "invalid_value",
        "15 apply.batch_bytes_max": "out_of_bounds",
        "15 apply.tables_parallel": "wrong_type",
        "16 journal.keep": "out_of_bounds",
        "16 journal.uri": "variable_not_set",
        "17 retry": "invalid_value",
        "18 spark.master": "wrong_type",
    }
    assert found["1 nam"].action == "Did you mean `name`?"
    assert found["5 source.hots"].action == "Did you mean `host`?"
    assert found["8 source.tls"].action == "Did you mean verify-full?"
    assert "at least 1 and at most 65535; found 99999" in found["6 source.port"].message
    assert "at least 1MiB" in found["15 apply.batch_bytes_max"].message
    assert "1KiB" in found["15 apply.batch_bytes_max"].message
    assert "at most 3650d" in found["16 journal.keep"].message
    assert "NOPE" in found["16 journal.uri"].message
    assert "${env:NAME}" in (found["7 source.password"].action or "")
    assert "hunter2" not in str(found)


def test_unknown_key_without_a_near_one_lists_those_known() -> None:
    found = problems_in(GOOD + "ddl: {zzzzz: 1}\n")
    assert "truncate_table" in (found["9 ddl.zzzzz"].action or "")


@pytest.mark.parametrize(
    ("lines", "location", "action"),
    [
        ("  include: [public.*]\n", "9 target.include", "`include` belongs under `tables:`. Check the indentation."),
        ("  tables: {}\n", "9 target.tables", "`tables` is a key of its own. Write it without indentation."),
        ("include: [public.*]\n", "9 include", "`include` belongs under `tables:`. Check the indentation."),
    ],
)
def test_a_key_in_another_block_than_its_own_says_where_it_belongs(lines: str, location: str, action: str) -> None:
    assert problems_in(GOOD + lines)[location].action == action


def test_a_text_instead_of_a_list_of_patterns_is_told_in_plain_words() -> None:
    found = problems_in(GOOD + "tables: {include: public.*}\n")
    assert "must be a list of table patterns; found text" in found["9 tables.include"].message


def test_misspelled_top_level_block_names_the_nearest() -> None:
    found = problems_in(GOOD.replace("target:", "tarqet:"))
    assert found["6 tarqet"].action == "Did you mean `target`?"
    assert found["1 target"].code == "missing_key"


@pytest.mark.parametrize(
    ("text", "location", "code"),
    [
        ("", "1", "empty_document"),
        ("# nothing\n", "1", "empty_document"),
        ("[a]", "1", "not_a_mapping"),
        ("text", "1", "not_a_mapping"),
        ("a: 1\nb: [", "2", "invalid_yaml"),
        ("a: 1\nb: [*.*]", "2", "invalid_yaml"),
        ("a: 1\nb: *x", "2", "invalid_yaml"),
        ("a: 1\n---\nb: 2", "2", "invalid_yaml"),
        ("a: 1\nb: \x01", "2", "invalid_yaml"),
        ("[" * 5000, "1", "invalid_yaml"),
        ("{a: " * 5000, "1", "invalid_yaml"),
        ("a: &x [*x]", "1", "document_too_large"),
        ("#" * 300_000, "1", "document_too_large"),
    ],
)
def test_what_is_not_a_mapping_in_yaml_is_one_problem(text: str, location: str, code: str) -> None:
    assert {p: problem.code for p, problem in problems_in(text).items()} == {location: code}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a:\n\tb: 1", "spaces"),
        ("a: [*.*]", "quotes"),
        ("a: *x", "quotes"),
        ("a: {b: 1\nc: 2", "brackets"),
        ("a: b: c", "Indent|indent"),
    ],
)
def test_the_remedy_for_text_that_is_not_yaml_is_about_its_fault(text: str, word: str) -> None:
    (problem,) = problems_in(text).values()
    assert re.search(word, problem.action or "")
    assert ("*" in (problem.action or "")) is ("*" in text)


def test_alias_bomb_is_refused_quickly() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert problems_in("\n".join(levels))["1"].code == "document_too_large"


def test_plain_alias_is_read() -> None:
    loaded = load_text(GOOD.replace("host: db", "host: &h db") + "journal: {uri: *h}\n")
    assert loaded.config.journal.uri == "db.internal"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("x: !!python/object/apply:os.system [ls]", "invalid_yaml"),
        ("x: !mine a", "invalid_yaml"),
        ("<<: {a: 1}", "invalid_yaml"),
        ("on: 1", "invalid_yaml"),
        ("1: a", "invalid_yaml"),
        ("[a, b]: 1", "invalid_yaml"),
        ("ddl: {drop_table: 2024-13-45}", "invalid_yaml"),
        (f"x: {'9' * 5000}", "invalid_yaml"),
        ("name: again", "duplicate_key"),
    ],
)
def test_yaml_beyond_plain_values_is_refused_with_its_line(line: str, code: str) -> None:
    found = problems_in(GOOD + line + "\n")
    assert any(location.startswith("9") and problem.code == code for location, problem in found.items())


def test_duplicate_key_names_the_first_line() -> None:
    found = problems_in(GOOD + "apply: {max_wait: 1s, max_wait: 2s}\n")
    assert "line 9" in found["9 apply.max_wait"].message


@pytest.mark.parametrize(
    ("line", "location"),
    [
        ("snapshot: {chunk_rows: true}", "snapshot.chunk_rows"),
        ("snapshot: {chunk_rows: 1.0}", "snapshot.chunk_rows"),
        ("snapshot: {chunk_rows: abc}", "snapshot.chunk_rows"),
        ("snapshot: {chunk_rows: 2024-01-31}", "snapshot.chunk_rows"),
        ("snapshot: {chunk_rows: }", "snapshot.chunk_rows"),
        ("journal: {bytes_max: true}", "journal.bytes_max"),
        ("journal: {uri: 2024-01-31}", "journal.uri"),
        ("tables: {include: public.*}", "tables.include"),
        ("tables: {settings: [a]}", "tables.settings"),
        ("tables: {settings: {a.b: {source_timestamp: 1}}}", 'tables.settings["a.b"].source_timestamp'),
        ("ddl: 5", "ddl"),
    ],
)
def test_wrong_type_is_one_problem_at_its_location(line: str, location: str) -> None:
    found = problems_in(GOOD + line + "\n")
    assert list(found) == [f"9 {location}"]
    assert found[f"9 {location}"].code == "wrong_type"


@pytest.mark.parametrize("missing", ["name", "source", "target"])
def test_missing_block_is_named(missing: str) -> None:
    text = "".join(line for line in GOOD.splitlines(keepends=True))
    text = text.replace(f"{missing}:", f"# {missing}:", 1)
    text = "\n".join(line for line in text.splitlines() if missing == "name" or not line.startswith("  ")) + "\n"
    assert any(p.code == "missing_key" and f"`{missing}`" in p.message for p in problems_in(text).values())


def test_unknown_type_names_the_nearest_and_the_installed() -> None:
    found = problems_in(GOOD.replace("type: postgresql", "type: postgres"))
    problem = found["3 source.type"]
    assert problem.code == "unknown_plugin"
    assert "Installed sources: postgresql." in problem.message
    assert "postgresql" in (problem.action or "")
    assert "pip install replicator-source-NAME" in (problem.action or "")


def test_missing_type_lists_the_installed() -> None:
    assert "delta" in (problems_in(GOOD.replace("  type: delta\n", ""))["6 target.type"].action or "")


def test_broken_plugin_is_told_from_an_unknown_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            GOOD,
            sources={},
            targets=TARGETS,
            broken=lambda kind, name: f"cannot be imported: no driver of {kind} {name}",
            env=ENV,
        )
    (problem,) = caught.value.problems
    assert problem.code == "plugin_broken"
    assert "no driver of source postgresql" in problem.message


def test_settings_of_a_block_are_checked_although_its_neighbour_has_no_plugin() -> None:
    found = problems_in(GOOD.replace("type: postgresql", "type: nothing").replace("path:", "paht:"))
    assert {"3 source.type", "8 target.paht"} <= set(found)


def test_path_is_read_and_named(tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(file, sources=SOURCES, targets=TARGETS, env=ENV).origin == "lake.yaml"


@pytest.mark.parametrize("content", [None, b"name: \xff"])
def test_unreadable_file_is_a_problem(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "lake.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, sources=SOURCES, targets=TARGETS)
    assert [problem.code for problem in caught.value.problems] == ["file_not_readable"]


# -- references -------------------------------------------------------------------------------------------------------


def test_references_stand_in_any_text_and_inside_longer_ones() -> None:
    text = GOOD.replace("db.internal", "'${env:HOST}.${env:DOMAIN}'") + "journal: {uri: 'file:///$${x}/${env:HOST}'}\n"
    text += "snapshot: {chunk_rows: '${env:ROWS}'}\ntables: {include: ['${env:HOST}.*']}\n"
    loaded = load_text(text, HOST="db", DOMAIN="internal", ROWS="10")
    assert loaded.source.host == "db.internal"  # type: ignore[attr-defined]
    assert loaded.config.journal.uri == "file:///${x}/db"
    assert loaded.config.snapshot.chunk_rows == 10
    assert str(loaded.config.tables.include[0]) == "db.*"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_file_reference_drops_one_newline(tmp_path: Path, end: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(f"two\nlines{end}".encode())
    file.chmod(0o600)
    loaded = load_text(GOOD.replace("${env:DB_PASSWORD}", f"${{file:{file}}}"))
    assert loaded.source.password.reveal() == "two\nlines"  # type: ignore[attr-defined]
    assert loaded.warnings == ()


def test_world_readable_secret_file_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("openly-known")
    file.chmod(0o644)
    loaded = load_text(GOOD.replace("${env:DB_PASSWORD}", f"${{file:{file}}}"))
    (warning,) = loaded.warnings
    assert (warning.severity, warning.code) == (Severity.WARNING, "file_readable_by_all")
    assert warning.location == "shop.yaml:5 source.password"


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("${env:UNSET}", "variable_not_set"),
        ("${env:A-B}", "invalid_reference"),
        ("${env:}", "invalid_reference"),
        ("${vault:x}", "invalid_reference"),
        ("${DB_PASSWORD}", "invalid_reference"),
        ("${env:DB_PASSWORD", "invalid_reference"),
        ("${file:relative}", "invalid_reference"),
        ("${file:/nowhere/at/all}", "file_not_readable"),
        ("${file:/tmp}", "file_not_readable"),
        ("${file:/dev/zero}", "file_not_readable"),
    ],
)
def test_reference_that_leads_nowhere_is_the_only_problem_at_its_location(reference: str, code: str) -> None:
    found = problems_in(GOOD.replace("${env:DB_PASSWORD}", f"'{reference}'"))
    assert {location: problem.code for location, problem in found.items()} == {"5 source.password": code}


def test_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = problems_in(GOOD.replace("${env:DB_PASSWORD}", f"${{file:{tmp_path / 'pipe'}}}"))
    assert found["5 source.password"].code == "file_not_readable"


def test_too_large_secret_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_text("x" * 100_000)
    found = problems_in(GOOD.replace("${env:DB_PASSWORD}", f"${{file:{tmp_path / 'big'}}}"))
    assert "64KiB" in found["5 source.password"].message


def test_empty_secret_is_refused() -> None:
    found = problems_in(GOOD, DB_PASSWORD="")
    assert "empty" in found["5 source.password"].message


# -- secrets stay secret ----------------------------------------------------------------------------------------------


def everything_shown(loaded: LoadedConfig) -> str:
    models = (loaded.config, loaded.source, loaded.target)
    shown = [repr(loaded), str(loaded)]
    for model in models:
        shown += [repr(model), str(model), str(model.model_dump()), model.model_dump_json(), str(dict(model))]
        shown.append(json.dumps(model.model_dump(mode="json")))
    return "\n".join(shown)


# An alphabet that stands nowhere in the messages, so that finding it proves a leak.
SECRETS = st.text(alphabet="ΑΒΓΔΕ\"'\\{}\n", min_size=1, max_size=20).filter(lambda text: text.strip("\"'\\{}\n") != "")


@given(secret=SECRETS)
def test_secret_shows_in_nothing_that_is_loaded(secret: str) -> None:
    loaded = load_text(GOOD, DB_PASSWORD=secret)
    core = secret.strip("\"'\\{}\n")
    assert core not in everything_shown(loaded)
    assert loaded.source.password.reveal() == secret  # type: ignore[attr-defined]


@given(secret=SECRETS, key=st.sampled_from(["label", "tls", "port", "chunk", "compress", "pool", "unknown", "host"]))
def test_secret_shows_in_no_error(secret: str, key: str) -> None:
    # A referenced value in fields that do not take it, the last one of which quotes it in a validator of the plugin.
    text = GOOD.replace("  host: db.internal\n", f"  {key}: 'a ${{env:DB_PASSWORD}}'\n")
    shown = ""
    try:
        load_text(text, DB_PASSWORD=secret)
    except ConfigError as error:
        shown = f"{error!r} {error} {error.problems}"
    assert secret.strip("\"'\\{}\n") not in shown


@given(literal=st.text(alphabet="ΑΒΓΔΕ", min_size=1, max_size=20))
def test_literal_secret_shows_in_no_error(literal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(GOOD.replace("${env:DB_PASSWORD}", f"'{literal}'"))
    assert [problem.code for problem in caught.value.problems] == ["literal_secret"]
    assert literal not in f"{caught.value!r} {caught.value} {caught.value.problems}"


@given(text=st.text(max_size=200) | st.text(alphabet="abc:- \n[]{}&*!'\"#|>%@", max_size=200))
def test_no_text_does_worse_than_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        load_text(text)


def test_file_name_is_all_that_the_headline_tells() -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(GOOD + "x: 1\n")
    assert refused.value.message == "shop.yaml cannot be used: 1 problem."


def test_relative_paths_of_documents_need_no_file_system() -> None:
    assert load(GOOD, sources=SOURCES, targets=TARGETS, env=ENV).origin == "configuration"
    assert not Path("configuration").exists()
