"""Access to the REST API: takes an address to listen on, or a token, and returns the rights of its caller."""
