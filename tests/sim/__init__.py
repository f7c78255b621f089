"""A whole cluster in one thread, under faults, from one seed: see docs/internals/simulation.md.

environment  time, chance, event loop, network, databases and machines, all simulated
patches      the product's use of threads, chance and SQLite, replaced by the environment
process      one process of a node, on a machine
cluster      all nodes
clients      publishers and consumers
books        what clients did and were told
nemesis      faults, and their end
checks       what must hold
mutations    rules of the product that can be taken out
run          one seed
"""
