"""Consumers of ``goq consume --group``: what each does with a message, and how that settles it.

acker        printed; acknowledged when the reader has taken it
pipe         how far the reader of a pipe has read
exec_worker  a process for each message; its exit code settles it
shell_command  one run of a shell command
process_output  what a process writes until it ends
coproc       workers that live long and answer each message
coproc_process  one of them
answer       the records that they read, and their answers
settlements  outcomes of messages, settled by a thread
"""
