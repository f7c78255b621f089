"""The members of a group, where each partition belongs to one consumer.

membership         joins, leaves, evictions, and the owner of each partition
sticky_assignor    the assignment of partitions to members
rebalance_history  the latest rebalances, for views
"""
