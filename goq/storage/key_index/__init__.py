"""The key index: offsets of messages by key or dedup id.

file         the ``.keys`` file of a segment, its format, and lookups in one part
extract      key hashes and dedup ids read from frames
lookup       one lookup, and the scan that answers it without an index
active_keys  the index of the active segment, kept in memory
sealed_keys  the index of a sealed segment, kept in its file, and the cache of all indexes
index        the index of a whole log
"""
