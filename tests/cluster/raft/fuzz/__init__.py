"""A whole Raft group in one thread, under faults, from one seed.

Must hold, whatever breaks: a command that was acknowledged is never lost; all nodes apply the same
commands in the same order; an acknowledgement carries what the machine answered to that request;
a request has effect at most once; a term has at most one leader, and that leader has every
committed entry; equal index and term mean equal logs; nobody drops a committed entry, nor one that
it confirmed and that was committed; once all is whole again everyone agrees and new commands
commit soon.

environment  time, chance, links, and the clock and files of a node, all simulated
libraries    the Raft libraries under test, and mends of them that can be taken out
cluster      the nodes and their lives
machine      the state machine that they replicate
clients      proposers of commands
operator     restarts, and changes of membership
nemesis      faults, and their end
watch        what must hold throughout
profile      what a seed decides before the run
run          one seed
"""
