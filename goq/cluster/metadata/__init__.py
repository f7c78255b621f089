"""The cluster's metadata: nodes, topics, partitions with their leaders, and groups.

A pure state machine, :func:`goq.cluster.metadata.apply.apply`, replicated by Raft and stored in
SQLite on each node.

broker_store   the broker's metadata store in a cluster: topics and groups go through Raft
client         proposes commands, and reads the state
commands       the commands that change the metadata
command_codec  the bytes of a command in the Raft log
state_machine  the replicated state machine: applies commands, stores the state, notifies listeners
apply          the pure function from state and command to state and result
handlers       what each command does
features       feature levels: what may be used while nodes run different versions
digest         the digest of a state, by which nodes notice that they differ
divergence     partitions of which a node had other metadata than the cluster
rows           the rows of a state, stored and hashed one by one
results        accepted and rejected commands
state          the immutable state
tables         the state as SQLite tables
"""
