"""Replication of partitions: one leader, followers that fetch from it, in-sync sets, repair.

replica_manager     all replicas of a node, and the services they share
replica             one replica: opens its logs, leads or follows
leader              a leading replica: what it serves, and what is safe
progress            the positions of all replicas, the in-sync set, the high watermark
protocol            fetch requests and responses on the wire
fetch               the sessions of followers, their fetches and the responses
push                what a leader sends by itself to followers that keep up
follower            a following replica: what it appends and truncates
leader_clocks       the clocks of the nodes that this node follows, compared with its own
segment_manifest    the segments that a node holds or has archived
follower_retention  deletion of segments on followers
archive_sync        copies of archived segments that a node lacks
status              reports of replicas for operators
repair              repair of damaged frames from other replicas
"""
