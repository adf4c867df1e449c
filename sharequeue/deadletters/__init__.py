"""Records that were given up: how each reaches the dead-letter topic exactly once, and what its letter contains."""
