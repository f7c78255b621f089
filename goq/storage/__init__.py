"""The durable log and its derived files, and the node's small database.

Storage is synchronous and has no network. Only ``disk`` touches data files. The other modules
decide what is written where, and what bytes on disk mean.

disk           the disk, a parameter of all storage, and the real one with its LRU of descriptors
disk_space     the room on the disk, and the reserve for when there is none
data_dir_lock  the lock of a data directory
journal        one write and one sync for what a turn appends to any log
log            an append-only log of frames: write, recover, read
scanner        the frames and the damage in a segment file
column_index   delivery columns of messages, without their frames
key_index      offsets by key or dedup id
compaction     the newest message of each key
archive        compressed copies of deleted segments
node_db        the node's SQLite database
catalog        topics by their rows in it and by the files in their folders
verification   a check of every stored byte
"""
