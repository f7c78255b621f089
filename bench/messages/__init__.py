"""Messages published, received and acknowledged.

singles         one message a request
batches         many a request
calls           the CPU of one call, of both sides
consuming       receives and acks of what is there
waiting         consumers that wait for messages
latency         from publish to delivered
handling        the CPU of the event loop for a request
mixed           lanes, keys and tenants at once
mixed_handling  the CPU of the event loop for these
delays          messages that wait for their time
dedup           dedup ids
backlog         topics that grow
fairness        small requests beside many publishes
"""
