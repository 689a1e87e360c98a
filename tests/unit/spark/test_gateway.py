"""What Spark's JVM is told, and what of our environment it gets."""

from __future__ import annotations

from replicator.spark.gateway import escaped, kept_variables


def test_passwords_of_sources_are_not_inherited() -> None:
    system = ("PATH", "HOME", "LC_ALL", "JAVA_HOME", "https_proxy", "NO_PROXY")
    connectors = (
        "SPARK_LOCAL_IP",
        "HADOOP_CONF_DIR",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "KRB5CCNAME",
    )
    kept = dict.fromkeys((*system, *connectors), "x")
    lost = dict.fromkeys(("SHOP_DB_PASSWORD", "SHOP_URL", "REPLICATOR_STATE_URL", "PGPASSWORD", "MYPATH"), "x")
    assert kept_variables({**kept, **lost}) == kept


def test_settings_are_spelled_as_java_reads_them() -> None:
    assert escaped("a b=c:d#!") == r"a\ b\=c\:d\#\!"
    assert escaped("C:\\x\n\r\t") == r"C\:\\x\n\r\t"
    assert escaped("é😀\x01") == r"\u00e9\ud83d\ude00\u0001"
