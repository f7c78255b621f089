"""The archive: compressed copies of segments that retention deletes.

file      the format of an archived segment, its writer and its reader
manifest  the listing of archived segments in ``node.db``, checked against the files
disk      a disk that reads archived segments as if they were not compressed
object_store    an object store as a disk, of backups too
stored_entry    the entry of a segment whose files are in the store
store_cache     objects that were read lately, as files
tiered_disk     a disk that reads files of the archive, here or in the store
loaded_indexes  the bound of sparse indexes in memory
"""
