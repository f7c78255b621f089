"""Analyses of what goq did, as PySpark functions over its exported tables.

Each takes frames with the columns of :mod:`goq.pipeline.arrow.schema` and gives a :class:`Report`.
"""
