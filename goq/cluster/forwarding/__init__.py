"""Requests that another node must answer: whole HTTP requests, frames and leases.

metadata_freshness  answers by all acknowledged changes of the metadata
partition_leaders   where each partition is led
http_proxy          a client's request, forwarded to the node that can answer it
node_routes         the ways from this node to others, built in one place
streamed_requests   a client's small request, over the stream with the node that answers it
relay               requests over a third node, where a node does not reach the leader
remote_partition    publishing to a partition that another node leads
quota_exchange      what principals used of their rates, told to the other nodes
stored_bytes        what the topics of principals hold on the other nodes, which are asked
lease_return        release of leases whose messages never reached their client
"""
