"""Consumers of ``goq consume --group``: what each does with a message, and how that settles it.

acker        printed; acknowledged when the reader has taken it
pipe         how far the reader of a pipe has read
exec_worker  a process for each message; its exit code settles it
"""
