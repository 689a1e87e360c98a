"""Lineage: events that tell the source of each table, column by column."""
