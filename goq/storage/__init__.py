"""The durable log: segments, indexes, recovery, retention, and the node's small database.

Everything here is synchronous and knows no network. ``files`` is the only module that touches the
disk; the rest decides what is written where, and what bytes on the disk mean.
"""
