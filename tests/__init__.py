"""Tests of goq, by kind; each folder mirrors goq's packages.

unit         pure parts, and storage on disks of memory or a folder of its own
integration  a broker or a node in the test's process
cluster      Raft groups, replicas and nodes of one cluster, in the test's process
sim          whole clusters under faults, in simulated time
process      nodes as processes of their own: killed, paused, deployed
spark        jobs, sources and sinks in a Spark session
docs         what README and docs show, run as it is written
support      what several tests share
"""
