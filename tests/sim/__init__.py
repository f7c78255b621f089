"""A whole cluster in one thread, under faults, from one seed: see docs/internals/simulation.md.

One module a noun: :mod:`world` is time, chance and history, :mod:`loop` the event loop that lets
nodes stand still and die, :mod:`network` what is between them, :mod:`databases` SQLite on a disk
that may lose power, :mod:`machine` what outlives a node's processes, :mod:`process` one of these,
:mod:`cluster` all of them, :mod:`clients` who publishes and consumes, :mod:`books` what they were
told, :mod:`nemesis` who breaks things, :mod:`checks` what must hold, :mod:`run` one seed.
"""
