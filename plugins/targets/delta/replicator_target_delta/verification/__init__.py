"""States of tables: a version comes in, checksums and rows in canonical form go out."""
