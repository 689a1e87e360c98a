"""Findings of `check`: facts about server and tables come in, problems with their SQL go out. Pure."""
