"""Journals without a worker: written by hand or by a capture in this process, applied, and read back.

Events or a source come in; sealed segments, and rows to compare with the source's, come out.
"""

__all__: list[str] = []
