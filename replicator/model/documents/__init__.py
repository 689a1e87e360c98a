"""Documents that commands print, and that REST API and dashboard show: the status, alerts, verdicts.

Records and reports come in; models whose JSON has a schema in `docs/` come out.
"""

__all__: list[str] = []
