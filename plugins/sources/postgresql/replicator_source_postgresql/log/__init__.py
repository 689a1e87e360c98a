"""The log: messages of the feed come in, pulls of Arrow columns go out, in the order of commits."""
