"""Appends to one log: admission, group commit, the quorum, and cached reads.

admission     drops duplicate frames and messages before append
group_commit  one write and one sync for many appends
quorum        the interface to replication: high watermark and acknowledgements
frame_cache   recently read frames, and the fetch of one receive
"""
