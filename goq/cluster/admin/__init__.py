"""Administration of a cluster: the views and the operations of operators.

cluster_view     the cluster as a member knows it
standalone_view  a node without a cluster, shown as a cluster of one
replica_status   how far all replicas are, asked from their nodes
operations       changes: nodes, reassignments, elections, settings
"""
