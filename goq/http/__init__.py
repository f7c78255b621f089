"""A small, bounded HTTP/1.1 server that knows nothing of topics or queues.

| module | holds |
|---|---|
| ``message`` | what a handler is given and what it answers: ``Request``, ``Response`` |
| ``bounds`` | ``HttpLimits``: every size, count and timeout |
| ``target`` | the request target's path, and its query |
| ``reader`` | bytes in, requests out; no I/O |
| ``serialize`` | answers as bytes |
| ``writer`` | whole answers and streams out, no faster than they are taken |
| ``pulse`` | the heartbeats of streams that have nothing to send |
| ``deadlines`` | one lazily armed timer per connection |
| ``shared`` | what all connections of one server share |
| ``connection`` | one connection: order, answers, cancellation |
| ``server`` | listening, counting, draining |
"""

from goq.http.bounds import HttpLimits
from goq.http.message import Handler, LiveStream, Request, Response
from goq.http.server import HttpServer

__all__ = ["Handler", "HttpLimits", "HttpServer", "LiveStream", "Request", "Response"]
