"""Messages between a supervisor and its processes.

Signals and requests to stop come in; reports and hints, which only the status reads, come out.
"""

__all__: list[str] = []
