"""State machine."""
