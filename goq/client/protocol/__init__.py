"""The HTTP API as the client writes and reads it, without I/O.

request_builder  HTTP requests: URL, headers, body and timeouts
routes           paths and queries
answers          JSON answers that the client itself uses
frames           binary bodies: placed frames, prefaces, and answers to publish, read, receive
topic_selection  topics by name and by pattern
"""
