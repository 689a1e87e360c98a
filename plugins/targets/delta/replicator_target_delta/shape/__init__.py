"""Shapes of tables in Delta: schemas come in, types, names, comments and properties go out."""
