"""Definitions of tables: answers of the log and the catalogue come in, alterations of records, journal and target go out."""
