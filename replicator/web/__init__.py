"""The REST API, in a process of its own: the same use cases as the command line, over HTTP."""

__all__: list[str] = []
