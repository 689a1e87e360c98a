"""Coordinate systems: the three ways in which a server says where in its log something is. One module each (ADR 19)."""

from replicator_source_mysql.coordinates.base import (
    Coordinates,
    DumpRequest,
    ReadView,
    ReadViews,
    SourceVisibility,
    Unseen,
)
from replicator_source_mysql.coordinates.progress import Progress
from replicator_source_mysql.coordinates.systems import CoordinateSystems

__all__ = [
    "CoordinateSystems",
    "Coordinates",
    "DumpRequest",
    "Progress",
    "ReadView",
    "ReadViews",
    "SourceVisibility",
    "Unseen",
]
