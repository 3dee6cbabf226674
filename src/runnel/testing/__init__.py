"""Public aids for tests: seams that a test controls."""
