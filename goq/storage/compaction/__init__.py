"""Compaction: the newest message of each key, in sealed segments.

checkpoint        how far passes got
cleaner           what a pass removes: offset map, tombstones
segment_merger    one segment of small neighbours
segment_rewriter  the next generation of a segment, without the removed messages
"""
