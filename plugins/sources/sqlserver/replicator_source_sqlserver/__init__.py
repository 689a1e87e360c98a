"""SQL Server as a source. Not finished: nothing is registered yet (README.md says what there is)."""
