"""Calls of one node to another: over its HTTP port, by whoever has the secret of the cluster."""
