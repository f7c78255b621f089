"""Membership of a node in its cluster: admission, identity, registration and data loss.

local_member         this node as a member, before it has a broker
join                 admission of new nodes, asked for and granted
disk_identity        the id of a data folder
registration         the node's entry in the cluster metadata
restored_topics      topics of a backup that the first node of a cluster brings along
durable_topics       topics whose acknowledged messages survive a power failure here
data_loss            a node whose messages are gone
divergence_recovery  a node whose metadata contradicted the cluster's
"""
