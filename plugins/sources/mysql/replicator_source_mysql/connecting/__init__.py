"""Connections: settings come in, connections go out, whose errors are ours."""
