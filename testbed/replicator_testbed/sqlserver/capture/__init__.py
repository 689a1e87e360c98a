"""Change Data Capture of the model: capture instances, the capture job that fills their change tables, and cleanup."""

__all__: list[str] = []
