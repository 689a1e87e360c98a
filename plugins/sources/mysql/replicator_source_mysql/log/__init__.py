"""The log: events come in, pulls of Arrow columns go out, in the order of commits."""
