"""Verification for targets whose tables DuckDB can read: the canonical form of values in its SQL, and the state of a table by queries."""
