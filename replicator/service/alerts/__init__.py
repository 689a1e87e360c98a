"""Alerts: what is wrong, who is told of it, and how."""
