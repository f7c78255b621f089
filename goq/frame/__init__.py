"""The frame: one published batch, and the unit of append, replication, storage and fetch.

``docs/format.md`` is the specification.

encoder         a frame written from columns
one_value       the frame of a message with only a value, without columns
header          the fixed 64 bytes of a frame
checksum        CRC32C
hashes          hashes of keys, dedup ids and producer names; the partition of a key
validation      the check of frames from outside
relative_times  delays and times to live, counted from the leader's time
view            a frame read in place, without copies
body            the sections of a frame's body
slice           frames made from a part of another frame's messages
part            the body of such a frame, gathered by column
projection      a frame without its values or headers
match           messages of a frame by key, dedup id or header
"""
