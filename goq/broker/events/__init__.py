"""The events of a partition: its second log, the index of that log, and the replay of its state.

writer        applies events to the state and queues them for the event log; writes snapshots
deadline_clock moves leases and retries when the wall clock was set
damage_recorder records damage that reads of messages found
group_changes notes which groups an event changes, for lookers-on
live_index    indexes events as they are written, and wakes requests that wait for an event
index         the sparse index over sealed and live segments of the event log
index_blocks  builds the blocks of the index; the file format ``.spans``
search        finds all events about one message through the index
recorded_acks finds what an ended lease acknowledged
replay        reads events in order and rebuilds the state of a partition from them
"""
