"""Reads of tables: what to read comes in, chunks of Arrow columns with what they saw go out."""
