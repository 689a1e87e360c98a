"""Findings of `check`: facts about server, database and tables come in, problems with their T-SQL go out. Pure."""
