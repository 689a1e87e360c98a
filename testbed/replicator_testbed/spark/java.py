"""Java's options for a Spark that lives for a minute or two, in demos and tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from replicator.spark import SparkHost

CLASS_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
"""Spark's classes as the JVM holds them in memory, made by `make setup`: a start takes two thirds of the processor time."""

_SHORT_LIVED: Final = (
    "-XX:+UseSerialGC",
    # Minutes are too short for the optimising compiler to pay: without it a merge costs half the processor time.
    "-XX:TieredStopAtLevel=1",
    # Without that compiler Java reserves less room for code than Spark's takes.
    "-XX:ReservedCodeCacheSize=240m",
    # What Java would prove about the jars' classes at every start is the same at every start.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


def short_lived_java(*more: str) -> str:
    """Return the options of a JVM of Spark's: driver, executor, master or worker."""
    options = [*_SHORT_LIVED, *more]
    if CLASS_ARCHIVE.exists() and " " not in str(CLASS_ARCHIVE):
        # An archive that does not fit this JVM is left alone, without a word.
        options += [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(options)


def short_lived_options(*more: str) -> dict[str, str]:
    """Return Spark's setting with these options for the driver."""
    return {"spark.driver.extraJavaOptions": short_lived_java(*more)}


def jvm_pid(host: SparkHost) -> int | None:
    """Return the process id of a host's JVM while it runs; None without one."""
    process = host._process  # noqa: SLF001 - to measure it, or to kill it: the product does neither
    return process.pid if process is not None and process.poll() is None else None
