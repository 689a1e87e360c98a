"""What a plugin has to do, as tests to inherit, and a source and a target in memory that do it."""
