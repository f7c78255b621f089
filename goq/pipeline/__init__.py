"""The data pipeline: messages and events as Arrow, Parquet, and PySpark sources and sinks.

It reads and writes through the client library. pyarrow and pyspark are imported only here, and
only when a command needs them.

arrow    frames as Arrow record batches, and back
export   topics as Parquet tables, incrementally
spark    Spark's data source and sink for topics
reports  analyses of exported tables, as PySpark functions
"""
