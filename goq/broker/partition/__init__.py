"""One partition: a message log, an event log, and the delivery state derived from them.

publish_target  the partition of a publish: local, or led by another node
partition       the partition: its parts, settings, availability and close
loader          recovery of the two logs, and of the state
appender        publish: append, then ready queues and waiting consumers
ready_state     delayed messages and ready queues in memory, their rebuild
leases          receive, acknowledge, nack, reject, release, extend
timers          lease ends, due retries, maturing delayed messages
failure_policy  backoff, attempts and dead letters, from the settings
group_view      a read-only view of one group's progress
delayed_reader  delayed messages, read from the columns on the disk
message_marks   messages cancelled, moved to another lane or rescheduled
producers       positions and names of producers
trimmer         retention's work on the segments
compactor       a pass of compaction over sealed segments
"""
