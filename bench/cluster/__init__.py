"""Several nodes on this machine.

members     three nodes: publishes, changes and failovers
commits     what agreeing costs, by Raft alone
partitions  a thousand partitions
rolling     restarts one after the other
"""
