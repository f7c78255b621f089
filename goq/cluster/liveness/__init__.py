"""Liveness."""
