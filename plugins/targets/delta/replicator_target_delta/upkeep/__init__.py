"""Upkeep of tables: their logs come in, compactions, purges and vacuums go out, in turn with what is written."""
