"""Findings of `check`: facts about server, role and tables come in, problems with their SQL go out. Pure."""
