"""Column index."""
