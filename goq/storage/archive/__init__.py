"""The archive: compressed copies of segments that retention deletes.

file      the format of an archived segment, its writer and its reader
manifest  the listing of archived segments in ``node.db``, checked against the files
disk      a disk that reads archived segments as if they were not compressed
loaded_indexes  the bound of sparse indexes in memory
"""
