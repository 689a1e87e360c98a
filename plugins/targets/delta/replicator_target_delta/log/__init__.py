"""The log of a table: paths come in, versions, owners, ledgers, columns and losses go out. One version is put at a time."""
