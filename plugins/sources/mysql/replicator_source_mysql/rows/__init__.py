"""Rows that are read by statements: a table and bounds come in, statements go out, and columns for the rows that come back."""
