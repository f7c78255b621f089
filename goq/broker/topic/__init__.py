"""An open topic: the producer side and the consumer side of its partitions.

topic             the topic: partitions, groups, settings
admin             the topics of a node: create, alter, delete, and the start
partition_opener  partitions opened from the disk, and again while they are offline
partition_table   the number of partitions, and the open ones
audit_log         the log of the audit trail
publisher         publish: a partition for each message, and one frame for each partition
receiver          receive: messages at once, or when they become ready
topic_leases      leases of one receive from all partitions
ready_partitions  the partitions that may have messages for a group
settler           acknowledge, nack, reject, release, extend
waiters           consumers that wait, in FIFO order, and readers of the log
push_streams      streams that deliver messages as they become ready
stream_credit     the messages in flight of each stream, up to its credit
"""
