"""Real PostgreSQL servers, odd tables on them, and what a capture or a standby makes of their log.

A folder comes in; servers, databases and rows as the server itself spells them come out.
"""

__all__: list[str] = []
