"""Spark's data source and sink: ``spark.read.format("goq")`` and ``df.write.format("goq")``.

source              batch and streaming readers
source_options      the options of the source
trigger_limits      the size of a stream's batches, and when a small one is due
topics              the tables of topics as input partitions
offset_ranges       a stream's offsets as ranges to read
sink                batch and streaming writers
sink_options        the options of the sink
transactions        exactly-once writes: stage, commit, publish
transaction_topics  the topics that hold staged rows and the ledger
session             the Spark session of commands
"""
