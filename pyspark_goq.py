"""Where Spark finds ``format("goq")`` by itself: it imports every module named ``pyspark_*``.

Without what ``goq[spark]`` brings there is no such format, and Spark's others work as before.
"""

try:
    from goq.pipeline.spark.source import GoqDataSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
