"""The column index: lane, tenant, delivery time and dedup id of messages, without their frames.

rows             rows as arrays, read from the columns of frames
block            the stored rows of a range of a segment, and their format
file             the ``.columns`` file of a segment
segment_columns  the column index of one segment
"""
