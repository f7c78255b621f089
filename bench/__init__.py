"""The benchmarks: ``python -m bench``. What they measure is in ``docs/benchmarks.md``.

harness   what measurements share
messages  publishing and consuming
log       storage, indexes, the past and backups
node      the event loop, starts, endurance, consoles, SQS
cluster   several nodes
pipeline  exports, audits and Spark
"""
