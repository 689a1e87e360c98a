"""Columns, rows, values and names as they leave the source.

One definition serves log rows, chunks, verification and everything that shows data.
"""
