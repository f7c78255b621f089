"""Kinds of faults; each strikes, and is over when its coroutine ends.

target     the nodes that a fault strikes
links      cuts, delays and repeated calls
lone_fault one long fault, during which the others go on
operators  nodes that join, leave and lose their disks, partitions that move
"""
