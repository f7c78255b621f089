"""Repair of damaged frames of a replica, from the other replicas.

manager         when a replica is scanned and repaired
replica_repair  the repair of one replica, segment by segment
lost_gaps       the damaged gaps that no replica can fill
frame_source    the frames for a gap, asked of other replicas
protocol        repair requests and responses
"""
