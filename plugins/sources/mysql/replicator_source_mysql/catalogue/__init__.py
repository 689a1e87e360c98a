"""Reads of the catalogue: connections come in, tables, columns and facts about server and account go out."""
