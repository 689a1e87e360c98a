"""Calls of Google's services: clients, jobs that run once, and rests that keep quotas and budgets.

Settings and statements come in; results come out, or errors that say whether a job may have run.
"""

__all__: list[str] = []
