"""Key index."""
