"""Metrics of a node in Prometheus text format (``/metrics``).

node     topics, partitions, HTTP and commits
groups   what waits in groups, and what their consumers do
cluster  nodes, replication, moves and Raft
"""
