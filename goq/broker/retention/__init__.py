"""Retention, compaction and the archive of the logs of a node.

retention_manager   seals and deletes segments when they are due
retention_policy    what retention keeps, by age, by size and for protected groups
due_times           when partitions are due for retention
retention_clock     the time for retention, which does not follow a clock that jumps ahead
archiver            archives segments before retention deletes them, and deletes archived ones
archive_writer      writes the files of archived segments, or copies of another node's
archived_segments   the archived segments of the node, listed in memory
archive_uploader    moves archived segments to an object store, and deletes them there
tiered_log          reads the archive and the live log as one log
compaction_manager  starts compaction passes of topics with ``cleanup: compact``
daily_counts        counts messages and bytes per UTC day
"""
