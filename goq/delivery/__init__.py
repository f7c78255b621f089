"""Delivery: which group gets which message when, as state machines that do no I/O.

A decision reads the state and the time and returns events; applying an event changes the state. The
same events, read back from the log, rebuild the same state: recovery is no second implementation.

dedup            messages that are stored already: producer sequences and dedup ids
delay            messages that wait for their due time
queues           ready queues, and the order in which a group reads them
selection        what one receive takes
group            one group's progress: leases, retries, locked keys
settlement       decisions on leased messages: ack, nack, reject, extend, expiry
outbox           messages on their way to another topic
events           the events of a partition, and the states of a message
partition_state  the state of a partition, changed by events only
group_tally      the counts of many groups at once
snapshot         the state as events, for a quick rebuild
clock_change     the move of deadlines to the clock of a new leader
membership       the members of a group and their partitions
trace            the life of one message, from its events
"""
