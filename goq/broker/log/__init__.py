"""Appends to one log: admission, group commit, the quorum, and cached reads.

append_queue     what waits for one log, and which of it becomes the next batch
admission        drops duplicate frames and messages before append
group_commit     one write and one sync for many appends
shared_frame     one frame for the single messages that wait for the same write
recent_batches   the latest batches in memory, for followers
commit_turn      one record of the journal for all logs of a turn of the event loop
pending_appends  appends on this node's disk, until they are acknowledged
quorum           the interface to replication: high watermark and acknowledgements
frame_cache      recently read frames, and the fetch of one receive
"""
