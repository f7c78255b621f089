"""The SQS-compatible endpoint: AWS SDKs use topics as queues, over a listener of its own.

A queue is a topic and the group ``sqs.group`` of it. Each operation becomes requests to the node's
own HTTP handler, so access control, quotas and the routing of a cluster hold for it too.

app            the handler of the listener: protocol, operation, answer
protocol       requests, answers and errors on the wire
operations     what each operation does
queue_view     a topic as a queue
attributes     attributes of queues, as topic settings and back
message_codec  messages and their attributes, as goq messages and back
handles        receipt handles
signature      who sent a request, by the key pair of a token
node_calls     requests to the node's own HTTP handler
"""
