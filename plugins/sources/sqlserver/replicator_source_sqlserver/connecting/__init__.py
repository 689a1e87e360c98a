"""Connections: settings come in, ODBC connections go out, whose errors are ours."""
