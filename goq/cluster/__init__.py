"""Several nodes as one: what they agree on, and how."""
