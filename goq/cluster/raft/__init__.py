"""Agreement of a few nodes on a sequence of commands, by Raft.

The library below is PySyncObj, of one exact version and with its faults mended; nothing outside of
this package imports it. ``docs/internals/raft.md`` says what is promised and why.
"""
