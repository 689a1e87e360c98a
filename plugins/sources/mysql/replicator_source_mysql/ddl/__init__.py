"""Statements that define tables: their text comes in, the shape that a table has afterwards goes out."""
