"""A whole Raft group in one thread, under faults, from one seed.

One module a noun: :mod:`world` is time and chance, :mod:`network` the links, :mod:`cluster` the
nodes and their lives, :mod:`machine` what they replicate, :mod:`clients` who proposes,
:mod:`nemesis` who breaks things, :mod:`watch` what must hold throughout, :mod:`run` one seed.

Must hold, whatever breaks: a command that was acknowledged is never lost; all nodes apply the same
commands in the same order; an acknowledgement carries what the machine answered to that request;
a request has effect at most once; a term has at most one leader, and that leader has every
committed entry; equal index and term mean equal logs; nobody drops a committed entry, nor one that
it confirmed and that was committed; once all is whole again everyone agrees and new commands
commit soon.
"""
