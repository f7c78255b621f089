"""The road to Spark: messages and events as Arrow, Parquet, and PySpark sources and sinks.

Needs what ``pip install 'goq[spark]'`` brings. The node imports none of it.
"""
