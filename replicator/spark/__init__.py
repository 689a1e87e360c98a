"""One SparkSession for the process, and the DataFrame steps that targets on Spark share."""

from replicator.spark.session import SparkHost, session_confs, spark_error

__all__ = ["SparkHost", "session_confs", "spark_error"]
