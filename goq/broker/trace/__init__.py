"""Message traces: the history of a message and of its copies.

tracer   follows a message and its copies across topics
sources  the readers that a trace uses: live logs, archive, and the offset of a copy
trace    the trace, and the links between messages and their copies
"""
