"""The simulated environment of the nodes.

world      time, chance and history
loop       the event loop, on which processes stand still and die
network    links between machines
databases  SQLite on a disk that may lose power
machine    what outlives a node's processes
patches    the product's use of threads, chance and SQLite, replaced by all this
"""
