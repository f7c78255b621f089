"""Metrics of a node in Prometheus text format (``/metrics``).

node     topics, partitions, groups, HTTP and commits
cluster  nodes, replication, moves and Raft
"""
