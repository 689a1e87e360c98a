"""Positions in the log: what a server has executed and where its files are come in, offsets and marks that compare go out. Pure."""
