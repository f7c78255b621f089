"""The asynchronous client, and the source that the synchronous one is generated from.

client              every call on one object: publish, consume, receive, settle
publish             producers, and what they send
consume             receives, the loop over a group's messages, and settlement
log                 reads of the log, and replays
admin               topics, single messages, nodes, tokens, schedules
http                requests to nodes: leaders, retries, errors
client_connections  one attempt of a request, at one node
streamed_response   a streamed answer
channel             a bounded queue between workers and one reader
runtime             locks, waits and workers of asyncio
"""
