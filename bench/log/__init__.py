"""What a node keeps, and what finding it again costs.

storage     the segment log
keys        finding by key
trace       finding the events of a message
past        a group as it was
background  reads of a large log beside traffic
snapshots   how long a snapshot of many groups holds the event loop
compaction  what compaction costs and saves
backups     a backup beside traffic
unchanged   backups in which nothing changed
"""
