"""Appends to one log: admission, group commit, the quorum, and cached reads.

admission     drops duplicate frames and messages before append
group_commit  one write and one sync for many appends
quorum        what an acknowledgement waits for besides the local disk
frame_cache   frames read lately, and the fetch of one receive
"""
