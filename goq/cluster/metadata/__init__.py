"""What all nodes of a cluster agree on: nodes, topics, partitions, groups, and who leads what.

A pure state machine, :func:`goq.cluster.metadata.apply.apply`, and its store. Raft carries the
commands; nothing here knows how.
"""
