"""Codec of the API: request bodies in, answers and errors out, as JSON or as frames.

request          JSON bodies, headers and query parameters of any request, checked
negotiation      whether an answer is JSON, frames or lines, by the header Accept
publish_request  published messages, from JSON or from frames, checked
receive_request  what a receive or a stream asks for, checked
publish_answer   the answer to the publish of one message, which waits for the append
large_publish    published messages from a large JSON body, in slices
messages         messages of an answer as JSON, and the JSON of any answer
frames           an answer as frames, with what is leased of each
long_value       the JSON text of a long value, in parts
leased           the leases of a receive answer, read back from its bytes
problem          errors as RFC 9457 problem responses
"""
