"""Consuming: receives, the loop over a group's messages, and settlement.

receive            one receive, and its batch
delivery_stream    the stream of a topic
consumer           the loop over a group's messages
open_streams       the streams of the loop, and their credit
receive_workers    its workers, which receive
settlement_client  the calls that settle messages by receipt
ack_batches        acks of single messages that share a request
received_message   a received message, and the settlement of many
settlement         receipts to leaders
"""
