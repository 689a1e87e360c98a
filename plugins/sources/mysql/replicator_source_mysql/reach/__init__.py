"""Tables that a statement in the log may have changed: definitions on the server come in, names of tables go out."""
