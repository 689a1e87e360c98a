"""Workers, their supervision, and the one retry policy."""
