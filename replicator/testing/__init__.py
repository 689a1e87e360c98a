"""What tests of the host and of plugins share: real servers, a network that fails on demand, pytest fixtures."""
