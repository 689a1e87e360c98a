"""Put Delta's jars into Spark's Ivy cache, once, so that later sessions start without the network's help.

Spark itself resolves them, by starting with `spark.jars.packages`: what works here works in the product. Ivy's progress
table and warnings are kept back unless that fails. `.venv/.jars-stamp` names the jars; with `--check` the exit code says
whether all of them are still there.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

STAMP = Path(sys.prefix) / ".jars-stamp"
START_TIMEOUT_SECONDS = 600

# Runs in a process of its own: the JVM writes to the standard streams of the process that starts it.
START_SPARK = """
import json, sys
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars.packages", sys.argv[1])
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
context = session.sparkContext
jars = context._jsc.sc().listJars()
names = [jars.apply(index).rsplit("/", 1)[-1] for index in range(jars.size())]
# The JVM's idea of home, where Ivy's cache is; $HOME may say another.
print(json.dumps({"home": context._jvm.System.getProperty("user.home"), "names": names}))
session.stop()
"""


def coordinates() -> str:
    """Return the Maven coordinates that fit the installed `pyspark` and `delta-spark`."""
    spark_series = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark_series}_2.13:{version('delta-spark')}"


def is_resolved(wanted: str) -> bool:
    """Say whether the stamp is for these coordinates and every file that it names is there."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return bool(stamp["coordinates"] == wanted and all(Path(jar).is_file() for jar in stamp["jars"]))


def resolve(wanted: str) -> list[str]:
    """Start Spark with the package and return the paths of the jars in the Ivy cache.

    Raises:
        SystemExit: Spark did not start; the text has its output and the ways out.
    """
    result = subprocess.run(
        [sys.executable, "-c", START_SPARK, wanted],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_SECONDS,
        check=False,
    )
    if result.returncode != 0:
        raise SystemExit(
            f"{result.stdout}\n{result.stderr}\n"
            f"Spark could not resolve {wanted} from its Maven repositories.\n"
            "Behind a mirror: name it in spark.jars.repositories or spark.jars.ivySettings, in conf/spark-defaults.conf\n"
            "under SPARK_CONF_DIR. Without a network: give every jar of the closure as a local file in spark.jars."
        )
    report = json.loads(result.stdout.strip().splitlines()[-1])
    # Spark names the folder after Ivy's version: .ivy2 until Spark 3, .ivy2.5.2 in Spark 4.
    caches = sorted(Path(report["home"]).glob(".ivy2*/jars"), reverse=True)
    jars = [next((cache / name for cache in caches if (cache / name).is_file()), None) for name in report["names"]]
    missing = [name for name, jar in zip(report["names"], jars, strict=True) if jar is None]
    if missing:
        raise SystemExit(
            f"Spark started, but {missing} are in none of the Ivy caches {[str(cache) for cache in caches]}."
        )
    return [str(jar) for jar in jars]


def main() -> int:
    """Resolve unless it has been done; return the exit code."""
    wanted = coordinates()
    if is_resolved(wanted):
        return 0
    if "--check" in sys.argv[1:]:
        return 1
    jars = resolve(wanted)
    with contextlib.suppress(FileNotFoundError):
        STAMP.unlink()
    STAMP.write_text(json.dumps({"coordinates": wanted, "jars": jars}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
