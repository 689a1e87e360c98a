"""Lineage: events that say which table is made from which, column by column."""
