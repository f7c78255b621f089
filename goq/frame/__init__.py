"""The frame: one published batch, and the unit of append, replication, storage and fetch.

``header`` is its fixed 64 bytes, ``encode`` writes one from columns, ``view`` reads one without
copying, ``check`` decides whether foreign bytes are a frame at all. ``docs/format.md`` is the
specification.
"""
