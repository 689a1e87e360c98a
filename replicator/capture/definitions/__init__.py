"""What a table is in the source, in the log and in the target: answers of the log and the catalogue come in, alterations go out."""
