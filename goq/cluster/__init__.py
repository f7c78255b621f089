"""Several nodes as one: metadata that all agree on, and logs that several of them have."""
