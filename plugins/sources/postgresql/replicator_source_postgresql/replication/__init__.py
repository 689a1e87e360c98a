"""A replicator's objects in the source: publication, slot and event trigger are made, compared, fenced and dropped."""
