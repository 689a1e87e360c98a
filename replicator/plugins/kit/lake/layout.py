"""How a target's data files hold values of the canonical types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a target must say of its data files before batches can be folded for it. All folded rows and keys are as it says.

    Attributes:
        type_of: The Arrow type in which a column of a canonical type is stored. Raises `EngineNeededError` for one that is not.
        stored: Values of a canonical type as they are stored: of the type that `type_of` names, of the same length, null where they were.
    """

    type_of: Callable[[pa.DataType], pa.DataType]
    stored: Callable[[pa.Array], pa.Array]
