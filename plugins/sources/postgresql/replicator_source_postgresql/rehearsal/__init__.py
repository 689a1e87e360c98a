"""Statements that nobody executes: a text comes in, what it would make of a table goes out."""
