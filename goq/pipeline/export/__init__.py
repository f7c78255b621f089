"""The incremental export of topics to Parquet.

plan                which offsets are exported next, in pieces, and when
staged_files        the files of one piece, written aside
parquet             a Parquet file of each date
spark_tasks         pieces staged by Spark tasks
ledger              the state of an export, and the plan under way
publish             staged files under their names, in one step
destination         a folder, or a filesystem that pyarrow reaches
remote_destination  an object store as a destination
errors              filesystem errors as errors of goq
groups_table        the state of consumer groups as a table
catalogs            the exported files as Iceberg and Delta tables
export              one export: plan, stage, publish, register
compaction          small files of closed hours merged into large ones
"""
