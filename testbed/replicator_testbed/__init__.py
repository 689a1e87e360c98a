"""Starts real servers, drives the `replicator` command, and compares both sides."""
