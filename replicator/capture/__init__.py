"""Reads a source's log and tables into the journal: numbered, sealed, and then acknowledged."""

from replicator.capture.pump import Capture
from replicator.capture.settings import CaptureSettings

__all__ = ["Capture", "CaptureSettings"]
