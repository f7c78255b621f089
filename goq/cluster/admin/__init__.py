"""What operators see of a cluster and do to it.

cluster_view     the cluster as a member knows it
standalone_view  a node without a cluster, shown as a cluster of one
replica_status   how far all replicas are, asked from their nodes
operations       changes: nodes, reassignments, elections, settings
"""
