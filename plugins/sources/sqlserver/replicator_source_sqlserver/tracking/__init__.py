"""Changes by change tracking: versions and keys come in, rounds of net changes go out."""
