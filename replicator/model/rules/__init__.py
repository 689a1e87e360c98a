"""Rules: every code of errors and findings with its texts. A module for each subject of the host has its own; so does each plugin."""

from replicator.model.rules.rule import Rule, Section

__all__ = ["Rule", "Section"]
