"""Snapshots: a table that has to be read comes in, chunks whose rows still hold go into the journal."""
