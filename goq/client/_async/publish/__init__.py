"""Publishing: producers, and what they send.

producer          publishes many messages in batches, from a worker
direct_publisher  single messages that share requests
publisher         one producer id on one topic
frame_publisher   whole frames under sequences of the caller's own
"""
