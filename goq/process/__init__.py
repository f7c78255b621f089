"""The process of a node: its event loop, its log, and its answers to signals.

run       the event loop, from the start of the node to its stop
settings  the settings as dotted names: what differs from the defaults, what changed
log       the process's log on stderr, as text or JSON
heap      the C heap: its arenas, and the return of free memory to the system
garbage   the collections of reference cycles, which hold up all requests
dump      what is under way, for the log
"""
