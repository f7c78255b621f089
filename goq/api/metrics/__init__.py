"""Metrics of a node in Prometheus text format (``/metrics``), and its OpenTelemetry spans.

sources  the parts of a node that are counted
node     topics, partitions, HTTP and commits
groups   what waits in groups, and what their consumers do
cluster  nodes, replication, moves and Raft
request_spans  a span for each request with a ``traceparent``
"""
