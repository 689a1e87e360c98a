"""The database of the state store: a URL comes in; transactions with the store's clock go out, whose errors are ours."""
