"""`plan`: takes a configuration and statistics of its source; returns the forecast of a start or a statement. Executes nothing."""
