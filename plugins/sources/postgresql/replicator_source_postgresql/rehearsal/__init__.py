"""Rehearsals: a statement that is not executed comes in, the changes it would make to a table go out."""
