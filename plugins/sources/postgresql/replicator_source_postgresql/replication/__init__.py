"""What a replicator has in the source: publication, slot and event trigger are made, compared, fenced and dropped."""
