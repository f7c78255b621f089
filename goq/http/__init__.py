"""A small, bounded HTTP/1.1 server and HTTP/1.1 client transports, without knowledge of topics.

server            the listening server ``HttpServer``, its counters and its drain
context           limits and state shared by all connections of one server
connection        one connection: request order, answers, cancellation
tls               the certificate of the server, and handshakes
request           from bytes to whole requests
message           ``Request``, ``Response``, ``LiveStream``, ``BriefAnswer``
timeouts          the two deadlines of a connection, on one lazily armed timer
loop_watch        watchdog of the event loop: its longest holds by route, and timed steps
failure_log       failed requests in the log, each with an id
response_writer   encoder and writer of whole answers and streams
unsent_answers    bound of the answers that clients have not taken yet
stream_heartbeat  heartbeats of idle streams, on one timer for a server
client            HTTP/1.1 transports for the client library and for calls between nodes
"""
