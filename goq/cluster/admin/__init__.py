"""Administration of a cluster: the views and the operations of operators.

cluster_view     the cluster as a member knows it
standalone_view  a node without a cluster, shown as a cluster of one
replica_status   how far all replicas are, asked from their nodes
backup_files     the files of the leaders for a backup of the cluster
operations       changes: nodes, reassignments, elections, settings
"""
