"""Use cases of the commands, one function each."""
