"""The topics and groups of a node: created, altered, deleted, within the memory of the node.

topic_admin   the changes of topics, one at a time: create, alter, delete, follow the cluster
open_topics   the open topics: opened, changed and deleted as decided
group_admin   the changes of groups: remember, configure, delete
topic_loader  topics recovered at the start, opened, deleted
start_queue   topics that open after the node is ready
capacity      the bound of partitions and groups, by the memory that they take
"""
