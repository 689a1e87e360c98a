"""Random changes of rows and definitions, for every target and for machines that compare both sides.

Draws of a test come in; changes, and what a table holds after them, come out.
"""

__all__: list[str] = []
