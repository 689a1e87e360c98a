"""Starts Spark's JVM and connects to it: as PySpark does, but with its settings in a file of its owner's, and few variables.

PySpark hands each setting over as an argument, which every user of the host can read, and the whole environment, which holds the
passwords of all replicators of a worker.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

_SETTINGS: Final = "spark.properties"
_CONNECTION: Final = "gateway"
_LOOK_S: Final = 0.05
_KEPT: Final = re.compile(
    # Of the system and of Java.
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|HOSTNAME|LD_\w+|MALLOC_\w+|CLASSPATH|XDG_\w+|SSL_CERT_\w+"
    r"|JAVA_\w+|_JAVA_OPTIONS|JDK_\w+|(?i:\w+_proxy)"
    # Of Spark, and of what reads and writes tables: object stores, Hadoop, Kerberos, clusters.
    r"|SPARK_\w+|PYSPARK_\w+|HADOOP_\w+|HDFS_\w+|YARN_\w+|KRB5\w+|KUBERNETES_\w+|AWS_\w+|AZURE_\w+|GOOGLE_\w+|GCS_\w+|CLOUDSDK_\w+"
)
_ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def launch(settings: Mapping[str, str], *, folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the JVM. It ends when its standard input, a pipe from this process, does.

    Args:
        settings: Spark's settings. They are in a file that only its owner can read, until `connect` returns.
        folder: Folder for that file, and for the file with the JVM's port; only its owner may look into it.
        log: Receives the output of the JVM.
    """
    from pyspark.find_spark_home import _find_spark_home

    file = folder / _SETTINGS
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
        out.writelines(f"{escaped(name)}={escaped(value)}\n" for name, value in settings.items())
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), "--properties-file", str(file)]  # noqa: PTH118
    # Without this the file would replace an operator's spark-defaults.conf.
    command.append("--load-spark-defaults")
    told = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / _CONNECTION)}
    return subprocess.Popen(
        [*command, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={**kept_variables(os.environ), **told},
        # Out of reach of Ctrl-C, which is for this process: it ends the JVM in its own time.
        process_group=0,
    )


def connect(process: subprocess.Popen[bytes], folder: Path) -> Any:
    """Wait for the JVM, and return the gateway to it.

    Raises:
        OSError: The JVM has ended.
    """
    from pyspark.java_gateway import launch_gateway
    from pyspark.serializers import UTF8Deserializer, read_int

    told = folder / _CONNECTION
    while not told.exists():
        if process.poll() is not None:
            raise ChildProcessError(f"Spark's JVM ended with {process.returncode}")
        time.sleep(_LOOK_S)
    with told.open("rb") as file:
        port, secret = read_int(file), UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
    for left in (told, folder / _SETTINGS):
        left.unlink()
    # So PySpark connects to a JVM that runs already. It imports what a session needs of Java.
    with _variables({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = process
    return gateway


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the JVM inherits: those that Java, Spark and its connectors know."""
    return {name: value for name, value in environ.items() if _KEPT.fullmatch(name)}


def escaped(text: str) -> str:
    """Escape a name or a value for a file of Java properties."""
    return "".join(
        _ESCAPED.get(character)
        or (
            f"\\{character}" if character in " :=#!" else character if " " < character < "\x7f" else _unicode(character)
        )
        for character in text
    )


def _unicode(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
