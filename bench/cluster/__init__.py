"""Several nodes on this machine.

members     three nodes: publishes, deliveries, changes and failovers
copying     nodes that were away or join: what copies cost
commits     what agreeing costs, by Raft alone
partitions  a thousand partitions
rolling     restarts one after the other
"""
