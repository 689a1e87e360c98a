"""States of tables: a table and ranges of its keys come in, checksums and rows in canonical form go out."""
