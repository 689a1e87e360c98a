"""Who may call the REST API: an address to listen on and a token come in, what its caller may do goes out."""
