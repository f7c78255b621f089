"""Consuming: receives, the loop over a group's messages, and settlement.

receive            one receive, and the stream of a topic
consumer           the loop over a group's messages
receive_workers    its workers, which receive
settlement_client  the calls that settle messages by receipt
ack_batches        acks of single messages that share a request
settlement         receipts to leaders, received messages, lease extension and release
"""
