"""Handlers of the metadata's commands, and the pure algorithms that they share.

topics             create, alter, delete and remove topics; add partitions
partitions         in-sync sets, leaders and damage of a partition
nodes              register, fence, decommission and remove nodes
tokens             access tokens
schedules          schedules, and what they have published
groups             consumer groups, and the settings of the cluster
reassignments      plan, start, cancel and finish the reassignment of replicas
unsafe_recovery    continue with one node after most nodes are lost
elections          which replica leads a partition
replica_placement  on which nodes new replicas go
balance            evens out replicas and leaderships with few moves
"""
