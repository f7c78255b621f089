"""Topics and partitions at work: publish, receive, settle, and the disk behind them.

The broker runs what delivery decides: an event is durable before its effect leaves the node. All of
it lives on one event loop; only disk work goes to threads.

broker             the topics of a node, and their life
metadata           the store of topics and groups: an interface, and the standalone one
partition_context  what a partition gets from its node: clock, random, threads, limits
topic              producer and consumer side of a topic
group              membership and single messages of consumer groups
partition          one partition
outbox             copies to other topics, dead letters first, exactly once
events             the event log: write, replay, index, search
log                group commit and reads of one log
retention          retention, compaction, archive and tiered reads
dlq                search and redrive of dead letters
search             search of messages by key, dedup id or header
trace              the trace of a message
runtime            background work and counters
"""
