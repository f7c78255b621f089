"""Reads of the log: partitions, topics, patterns of topics, replays.

log_client        the calls that read the log
topic_wait        the wait for a topic that is not created yet
topic_time        the node's clock
partition_reader  one partition, batch by batch
topic_reader      all partitions of topics, merged by append time
topic_discovery   the topics of a pattern, as they are created
replay_reader     a replay with absolute bounds, and its messages
topic_copy        a replay copied into another topic, exactly once
"""
