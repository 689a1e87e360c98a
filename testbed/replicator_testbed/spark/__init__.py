"""One Spark for a session of tests, or a cluster of processes on loopback.

Options of Java and of Spark come in; a session or a master's address comes out.
"""

__all__: list[str] = []
