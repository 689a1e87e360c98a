"""`plan`: a configuration and statistics of its source come in, what a start or a statement would do goes out. Nothing is executed."""
