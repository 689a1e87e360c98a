"""Upkeep of tables: their logs come in, compactions, purges and vacuums go out, never at the same time as a conflicting merge."""
