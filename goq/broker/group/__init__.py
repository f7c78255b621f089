"""Group."""
