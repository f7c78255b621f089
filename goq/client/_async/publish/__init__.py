"""Publishing: producers, and what they send.

producer         publishes many messages in batches, from a worker
publisher        one producer id on one topic; single messages that share requests
frame_publisher  whole frames under sequences of the caller's own
"""
