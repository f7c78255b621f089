"""Exports, audits and Spark.

export       exports, and Spark's reading
spark_reads  the process of Spark in these
lake         a made-up export
audit        an audit of many messages
"""
