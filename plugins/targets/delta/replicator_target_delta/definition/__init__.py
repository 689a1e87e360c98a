"""Definitions of tables: schemas and alterations come in, tables that are made, altered, swapped or dropped go out."""
