"""Metrics of a node in Prometheus text format (``/metrics``), and its OpenTelemetry spans.

node     topics, partitions, HTTP and commits
groups   what waits in groups, and what their consumers do
cluster  nodes, replication, moves and Raft
request_spans  a span for each request with a ``traceparent``
"""
