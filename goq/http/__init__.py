"""A small, bounded HTTP/1.1 server, and the client's side of HTTP/1.1; neither knows of topics.

server            the listening server: ``HttpServer``, with counts and draining
connection        one connection: order, answers, cancellation
request_parser    bytes in, requests out; no I/O

message           what a handler is given and returns: ``Request``, ``Response``, ``LiveStream``
timeouts          the deadlines of a connection, on one lazily armed timer
response_writer   whole answers and streams, written no faster than the client takes them

stream_heartbeat  heartbeats of streams that have nothing to send
context           what all connections of one server share, and its limits
client            HTTP/1.1 transports for the client library and for calls between nodes
"""
