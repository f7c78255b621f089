"""The audit of an export: every published message accounted for, and no row against another.

group_progress  the progress of partitions and groups: small, and known before the rows are read
slice_rows      the rows about a slice of a partition's offsets, as arrays
slice_audit     the fates of a slice's messages, and contradictions
slices          the slices of all tables, audited by Spark tasks
audit           the report
"""
