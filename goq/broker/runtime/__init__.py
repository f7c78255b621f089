"""Background work and counters of the broker.

tasks             background tasks whose errors are logged, changes that outlive their callers
single_job        a job on request, one at a time, and how the last one ended
background        reads at low priority, paced so that live traffic goes first
metrics           counters and histograms of a node
bounded_executor  a share of the threads, for the work of one topic
callbacks         none, for what is closed
disposal          containers of many objects, freed in slices
"""
