"""Pysyncobj."""
