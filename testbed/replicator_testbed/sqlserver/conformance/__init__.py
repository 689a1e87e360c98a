"""Asks a SQL Server how change data capture and change tracking behave there, and compares its answers with the model's.

A connection string comes in, a JSON document of answers goes out: `python -m replicator_testbed.sqlserver.conformance`.
"""
