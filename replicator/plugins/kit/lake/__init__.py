"""What every lake of immutable data files needs: the index of keys, the bytes of deletion vectors, and which files are joined.

In come keys, sets of row numbers and sizes of files; out go rows, bytes and files. Nothing here knows a table format.
"""
