"""What leaves the source: columns, masks and names of a table.

Settings and a table's schema come in. Out go the target's schema, and rows as they may be written, shown and compared.
"""
