"""What a table is: schemas and alterations come in, tables that are made, altered, swapped or dropped go out."""
