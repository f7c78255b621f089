"""The Raft core: PySyncObj with its faults fixed, one class over five modules.

core               ticks, commit and apply, log compaction, membership changes
election           pre-votes and votes
leader             replication to followers, as log entries or as a snapshot
follower           message dispatch; entries and snapshots from the leader
hardened_sync_obj  the complete node, without threads, sockets or a clock of its own
"""
