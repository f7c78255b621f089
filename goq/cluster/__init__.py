"""Several nodes as one broker: metadata that all agree on, partitions that several of them hold.

bootstrap        construction of a cluster node: what comes before the broker, and after it
node_builder     the parts that work with the broker, the one place that wires them
cluster_node     the running node: starts, feeds and stops the parts
reconciler       local topics and replicas, made to follow the metadata
unsafe_recovery  a cluster restarted from one node's folder
membership       admission, registration, disk identity, data loss
liveness         heartbeats, disk health, readiness, handoff before a stop
admin            what operators see and change
forwarding       requests that another node must answer
controller       decisions: which nodes are up, which replicas lead
metadata         the replicated state of topics, partitions and nodes
rpc              calls between nodes
replication      leaders, followers, in-sync sets, repair
raft             consensus on the metadata
"""
