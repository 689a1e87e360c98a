"""Types in which a target's data files store values of the canonical types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A target's description of its data files, which the fold needs. All folded rows and keys have these types.

    Attributes:
        type_of: Returns the Arrow type in which a column of a canonical type is stored. Raises `EngineNeededError` if it is not stored.
        stored: Converts values of a canonical type to the stored one: the type that `type_of` returns, the same length and nulls.
    """

    type_of: Callable[[pa.DataType], pa.DataType]
    stored: Callable[[pa.Array], pa.Array]


PLAIN = Layout(type_of=lambda type_: type_, stored=lambda values: values)
"""Of a target that stores values of all canonical types as they are."""
