"""Texts of statements, where the emulator's answer to a wrong one is dear to wait for."""

from __future__ import annotations

import pytest

from replicator.plugins.target import Batch, TableOptions
from replicator_target_bigquery import statements
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.shape import shape_of
from replicator_testing.target_harness import items_schema


def test_only_what_has_a_lower_number_is_cleared_where_a_number_is_given() -> None:
    assert statements.clear(shape_is_soft=False, target="d.t", sequence_num=9) == "TRUNCATE TABLE `d.t`"
    below = statements.clear(shape_is_soft=False, target="d.t", sequence_num=9, below=5)
    assert below == "DELETE FROM `d.t` WHERE `_sequence_num` < 5"
    marked = statements.clear(shape_is_soft=True, target="d.t", sequence_num=9)
    assert marked == "UPDATE `d.t` SET `_is_deleted` = TRUE, `_sequence_num` = 9 WHERE NOT `_is_deleted` AND TRUE"
    marked = statements.clear(shape_is_soft=True, target="d.t", sequence_num=9, below=5)
    assert marked.endswith(" WHERE NOT `_is_deleted` AND `_sequence_num` < 5")


@pytest.mark.parametrize("expects_rows", [True, False])
def test_rows_that_are_not_found_are_counted_where_they_are_expected(expects_rows: bool) -> None:
    schema = items_schema()
    batch = Batch(schema=schema, files=[], last=3, skip_to=0, rows=3, expects_rows=expects_rows)
    names = Names(BigQueryConfig.model_validate({"project": "p", "location": "EU", "staging": {"bucket": "staging"}}))
    found: list[str] = []

    def counted(query: str) -> str:
        found.append(query)
        return query

    statements.batch_statements(shape_of(schema, TableOptions(), names, "string"), "d.t", "d.s", batch, counted)
    assert ["0 AS not_found" in query for query in found] == [not expects_rows]
