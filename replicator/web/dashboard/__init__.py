"""The dashboard: pages made from the status models, readable without JavaScript."""

__all__: list[str] = []
