"""Liveness of a node: heartbeats, disk health, readiness, and the handoff before a stop.

heartbeat           the heartbeats of this node, and its session with the controller
disk_health         whether the disk takes writes: a node whose disk fails leads nothing
readiness           what a node waits for before clients and the cluster can count on it
leadership_handoff  giving leaderships away before a stop
"""
