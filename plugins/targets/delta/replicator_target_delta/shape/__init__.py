"""What a table looks like in Delta: schemas come in, types, names, comments and properties go out."""
