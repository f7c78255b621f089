"""HTTP/1.1 client, used by the client library and by calls between nodes.

http1              requests as bytes; no I/O
response_reader    the parser of responses; no I/O
transport          the transport over an asyncio protocol
errors             why a request got no whole answer
trust              the authorities that a client trusts, and its certificate
process_fork       what a forked child has of its parent's connections
socket_transport   the transport over blocking sockets
socket_connection  one of its connections
"""
