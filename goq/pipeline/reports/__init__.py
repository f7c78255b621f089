"""Analyses of topics, as PySpark functions over exported tables.

Each takes frames with the columns of :mod:`goq.pipeline.arrow.schema` and returns a ``Report``.

tables        the tables of an export, or live from a node
report_selection  the messages and the group that a report is about
audit         every published message, accounted for (a package)
traffic       rates, backlog and service times over time
waits         latency, lateness and fairness
retries       redeliveries and dead letters, by cause
skew          the load of partitions and keys
republish     messages chosen by a query, published again
report        a report: sections, charts, values with units
spark_errors  Spark's errors in one line
html          a report as a page with charts
"""
