"""A whole cluster in one thread, under faults, from one seed: see docs/internals/simulation.md.

environment  time, chance, event loop, network, databases and machines, all simulated
process      one process of a node, on a machine
cluster      all nodes
clients      publishers and consumers
books        what clients did and were told
dead_letters who redrives dead letters, and what must hold of these
logs         what is on the disks of machines, and what would be left after a power cut
faults       kinds of faults
nemesis      when they strike, and their end
checks       what must hold
mutations    rules of the product that can be taken out
run          one seed
"""
