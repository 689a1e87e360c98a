"""The status document: a state store comes in, what `status` and the REST API answer about its replicators goes out."""
