"""The Replicator: keeps a continuously updated copy of a database in a target."""
