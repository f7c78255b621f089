"""Clusters of real processes under load while they are struck, and the check of every promise."""
