"""The database under the state store: a URL comes in, transactions with the store's clock go out, whose errors are ours."""
