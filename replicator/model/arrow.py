"""PyArrow, loaded when a name of it is first used.

It takes longer to load than everything else that a command such as `status` needs, and that command does not need PyArrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
else:

    class _PyArrow:
        """Stand-in for the module; thread-safe, as `import` is."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("pyarrow"), name)
            setattr(self, name, value)  # found without this method from now on
            return value

    pa = _PyArrow()

__all__ = ["pa"]
