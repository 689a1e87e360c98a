"""Configurations: takes a text; returns findings, and stores the configuration if none is blocking."""
