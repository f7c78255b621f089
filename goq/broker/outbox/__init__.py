"""The outbox of a partition: messages that move to another topic, each stored there exactly once.

worker               publishes the entries of the outbox to their targets and records the result
copier               builds the frames that hold the copies
dead_letter_headers  the headers of dead letters and of redriven messages
"""
