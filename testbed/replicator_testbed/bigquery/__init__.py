"""A BigQuery emulator in a process of its own, with the statements and the history that its version lacks.

Datasets and scripts come in over HTTP; rows come out over HTTP, or to a test that compares them.
"""

__all__: list[str] = []
