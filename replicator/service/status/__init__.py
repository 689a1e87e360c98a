"""Status document: takes a state store; returns the answers of `status` and the REST API about its replicators."""
