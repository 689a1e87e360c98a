"""Contract suites for plugins, as tests to inherit, and a source and a target in memory that fulfil them."""
