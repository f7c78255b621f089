"""The topics of a standalone node, each known twice: by ``node.db`` and by its own folder.

rows            topics, and manifests of segments and archives, as values
checked_tables  tables of SQLite whose rows have a CRC
sqlite_errors   errors of the disk, apart from damage
topic_file      identity and settings of a topic, in a file of its folder
topic_catalog   both together: recovery at the start, and changes
"""
