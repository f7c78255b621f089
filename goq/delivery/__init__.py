"""Who gets which message when: state machines that do no I/O.

A decision looks at the state and the time it is given and returns events; applying an event
changes the state. The same events, read back from the log, rebuild the same state: recovery is
not a second implementation.
"""
