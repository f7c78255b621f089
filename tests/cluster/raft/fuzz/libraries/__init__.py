"""The Raft libraries under test.

library   the interface of a library
stock     PySyncObj as it is released
hardened  the node of goq
ablation  the mends of goq, each of which can be taken out
"""
