"""Gateway of a cluster node: any node answers any client, with the help of the leaders.

gateway          dispatch of a request by the routing policy of its route
fanout           requests to the partition leaders, and retries while leaders change
coverage         the partitions that the answer of one node is for
sequential       requests that take messages from one partition after another
receive          receive from all leaders of a topic
streams          the streams of a node's clients
merged_stream    one stream made of a stream of each leader
live             what all nodes do now, in one stream of lines
settle           receipts settled at the leaders of their partitions
membership       heartbeat and leave of a group member at all leaders
relayed          requests that another node relays over this one
audit_trail      records of actions and refusals, also on a standalone node
cluster_version  the version of the cluster metadata in each answer
miss_retry       a second look before an answer says that something is missing
"""
