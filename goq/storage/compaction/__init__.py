"""Compaction: the newest message of each key, in sealed segments.

cleaner           what a pass removes: offset map, tombstones, checkpoint
segment_rewriter  the next generation of a segment, without the removed messages
"""
