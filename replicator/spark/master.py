"""Checks of `spark.master` without starting Spark: whether it can be used, and whether anything answers there."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.state.database.local_files import network_file_system

_LOCAL: Final = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:, *\d+)?\])?")
_STANDALONE: Final = re.compile(r"spark://([^/,]+:\d+(?:,[^/,]+:\d+)*)")
_LOOPBACK: Final = re.compile(r"spark://(?:localhost|127(?:\.\d+){3}|\[::1\]):\d+")
_OTHERS: Final = re.compile(r"yarn|k8s://.+")
CONNECT_S: Final = 5.0


def local_threads(master: str, cores: int) -> int | None:
    """Return the number of threads of a master inside this process; None for a cluster."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    if match[1] is None:
        return 1
    return cores if match[1] == "*" else int(match[1])


def is_cluster(master: str) -> bool:
    """Return whether the work is done by processes outside this one."""
    return _LOCAL.fullmatch(master) is None


def setting_problem(master: str) -> Problem | None:
    """Return the problem of the setting's text; None if it can be used."""
    if any(form.fullmatch(master) for form in (_LOCAL, _STANDALONE, _OTHERS)):
        return None
    return Problem(
        code="spark_master_unsupported",
        message=f"{master} is not a supported Spark master.",
        location="spark.master",
        action="Set spark.master to local[*], spark://HOST:PORT, yarn or k8s://…; Spark Connect (sc://) is not supported.",
    )


def java_problem() -> Problem | None:
    """Return a problem if the driver, which runs on this machine, has no Java."""
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    if shutil.which(program) is not None:
        return None
    where = f"JAVA_HOME ({home}) has no bin/java" if home else "neither JAVA_HOME nor the PATH has one"
    return Problem(
        code="java_missing",
        message=f"Spark needs Java, and {where}.",
        location="spark",
        action="Install Java 17 or later, or set JAVA_HOME.",
    )


def reach_problem(master: str, *, timeout_s: float = CONNECT_S) -> Problem | None:
    """Return a problem if nothing listens at a `spark://` master; one of several is enough. Other kinds are not checked."""
    match = _STANDALONE.fullmatch(master)
    if match is None:
        return None
    reasons: list[str] = []
    for address in match[1].split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
                return None
        except (OSError, OverflowError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    return Problem(
        code="spark_master_unreachable",
        message=f"The Spark master {master} cannot be reached from this host ({'; '.join(reasons)}).",
        location="spark.master",
        action="Start the master, or correct spark.master: it is the URL at the top of the master's own web page.",
    )


def sharing_problems(master: str, paths: Sequence[tuple[str, str]]) -> Sequence[Problem]:
    """Return problems for the paths that the executors of a cluster may not reach.

    Args:
        master: `spark.master`.
        paths: The setting's name, and the path or URI that it leads to.
    """
    # No worker of another host reaches a master that listens on loopback.
    if not is_cluster(master) or _LOOPBACK.fullmatch(master):
        return ()
    problems = []
    for setting, uri in paths:
        path = uri.removeprefix("file://")
        if "://" in path or network_file_system(Path(path)):
            continue
        problems.append(
            Problem(
                code="path_not_shared",
                message=f"{uri} is a path on this host, and Spark's executors run on the cluster {master}.",
                location=setting,
                action="If executors run on other hosts, use a location that all share (s3a://…, gs://…, hdfs://…, or a network mount).",
                severity=Severity.WARNING,
            )
        )
    return tuple(problems)
