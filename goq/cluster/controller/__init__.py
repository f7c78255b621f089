"""The controller: decides fencing, reassignments and leaderships, on the Raft group's leader.

port_probe            what is at the port of a node: closed, TLS or not
runner                runs the controller while this node leads the Raft group
node_liveness         latest heartbeats, and which sessions have expired
clock_skew            how far the nodes' clocks are off, and whether a node is unfit for that
controller            the pure decision: from state and liveness to commands
unsettled_partitions  the partitions that may need a step, kept between passes
rebalance             the plan that makes replicas and leaderships even
"""
