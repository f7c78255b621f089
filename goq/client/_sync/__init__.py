"""The synchronous client, generated from ``_async`` by tools/unasync.py.

client           every call on one object: publish, consume, receive, settle
producer         publishes many messages in batches, from a worker
publisher        one producer id on one topic; single messages that share requests
frame_publisher  whole frames under sequences of the caller's own
receive          one receive, and the stream of a topic
consumer         the loop over a group's messages
receive_workers  its workers, which receive
settlement_client  the calls that settle messages by receipt
settlement       receipts to leaders, received messages, lease extension and release
log_client       the calls that read the log
topic_wait       the wait for a topic that is not created yet
partition_reader  one partition, batch by batch
topic_reader     all partitions of topics, merged by append time
topic_discovery  the topics of a pattern, as they are created
replay_reader    a replay with absolute bounds, and its messages
topic_copy       a replay copied into another topic, exactly once
admin            topics, groups and the node
message_admin    single messages, traces, dead letters
cluster_admin    the cluster
token_admin      tokens, and the sender of a request
schedule_admin   schedules
http             requests to nodes: leaders, retries, errors
streamed_response  a streamed answer
channel          a bounded queue between workers and one reader
runtime          locks, waits and workers with threads; the only one written by hand
"""
