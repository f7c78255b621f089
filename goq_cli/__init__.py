"""The ``goq`` command: thin over the client library; only ``serve`` runs a node.

__main__            where the process begins
main                the entry point: global options, the command, errors, exit codes
session             the server, the token and the output form of one run
contexts            servers remembered by name
commands            one module a command
input               messages from stdin and files
output              answers, tables and reports on stdout
interrupts          signals that end a blocked call, or wait for the end of work
completion          what may stand at the cursor of a command line
rate                a rate limit
settlement          what ``goq consume --group`` does with a message, and how that settles it
replay_modes        where a replay goes: stdout, a topic, a group, or a dry run
suggestion          what a misspelt name may have meant
dead_letter_filter  the options that select dead letters
"""
