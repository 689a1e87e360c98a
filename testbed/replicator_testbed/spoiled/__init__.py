"""What can be wrong in a target, for tests of `replicator verify`.

Types and kinds of corruption come in; corrupted tables, and what has to be found in them, come out.
"""

__all__: list[str] = []
