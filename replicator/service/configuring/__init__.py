"""Configurations: a text comes in, findings go out, and a stored configuration if there are none."""
