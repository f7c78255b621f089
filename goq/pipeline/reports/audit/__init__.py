"""The audit of an export: every published message accounted for, and no row against another.

group_progress  the progress of partitions and groups: small, and known before the rows are read
slice_rows      the rows about a slice of a partition's offsets, as arrays
slice_audit     the fates of a slice's messages, and contradictions
slices          the tables of an audit, cut into slices
file_slices     the slices of a folder
file_rows       the rows of a slice, read from files by a task
file_faults     files that are not as they were exported
frame_slices    the slices of tables that only Spark can read
node_comparison  exported messages against those of the node
audit           the report
"""
