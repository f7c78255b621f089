"""The HTTP API as the client writes and reads it, without I/O.

routes  paths and queries
frames  binary bodies: placed frames, prefaces, and the answers to publish, read and receive
"""
