"""Positions in the log: executed transactions and positions in files come in, offsets and marks that compare go out. Pure."""
