"""Real MariaDB and MySQL servers, odd tables on them, and random transactions from several sessions.

A folder and a flavour come in; servers, statements and the rows that they must leave come out.
"""

__all__: list[str] = []
