"""An append-only log of frames, as segments in a directory.

log                the log: append, roll, truncate, delete
active_file        the file that grows, and what of it is durable, under one lock
segment            one file of the log, its generations, the batch that a commit writes
segment_files      which files of a directory are segments, and which were left behind
rewrite_history    up to where segments were written again
sparse_index       offset and time index of a segment
replicated         what a follower appends: frames of its leader
recovery_point     what is durable, and where recovery starts to scan
repair             damaged ranges replaced by frames of another replica
recovery           opening a log after a crash, a power cut or damage
reader             reads by offset or by time
time_lookup        the end of the log at a time, and reads backward
time_range_reader  the messages of a time range
leader_epochs      the end offset of each leader epoch
"""
