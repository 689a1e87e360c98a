"""PyArrow, loaded when something of it is first used.

It takes longer to load than a command such as `status` takes for everything else, and that command needs nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
else:

    class _PyArrow:
        """Stands for the module; thread-safe, as `import` is."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("pyarrow"), name)
            setattr(self, name, value)  # found without this method from now on
            return value

    pa = _PyArrow()

__all__ = ["pa"]
