"""`verify`: a replicator and a scope come in, a document with what both sides have in common goes out."""
