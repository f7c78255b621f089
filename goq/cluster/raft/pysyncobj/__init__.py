"""The Raft core: PySyncObj with its faults fixed, one class over four modules.

core               ticks, commit and apply, log compaction, membership changes
leader             replication to followers, as log entries or as a snapshot
follower           message dispatch; entries and snapshots from the leader
hardened_sync_obj  the complete node, without threads, sockets or a clock of its own
"""
