"""Reads of the catalogue: connections come in, tables, columns and identities go out."""
