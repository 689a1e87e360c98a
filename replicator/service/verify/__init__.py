"""`verify`: takes a replicator and a scope; returns a document that compares source and target."""
