"""`replicator demo`: the main job end to end, on an embedded source, with a `kill -9` in the middle."""
