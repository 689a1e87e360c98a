"""Alerts: detects what is wrong, and sends messages about it."""
