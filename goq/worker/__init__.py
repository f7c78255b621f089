"""Workers: functions that handle the messages of a group, many at once, settled by how they end.

A function that returns acknowledges its message, one that raises nacks it, one that raises a
declared error rejects it. Leases are extended while functions run. Messages of one key run one
after the other. A stop takes no more messages, and waits for the functions that run.

app         the workers of a program: started together, stopped together
function    a function with its options, checked when it is decorated
loop        the consume loop of one worker, and the threads of its function
key_queues  messages that wait for an earlier one of their key
handler     one message: decoded, handled and settled
event_loop  the event loop that runs what functions await
"""

from goq.worker.app import WorkerApp

__all__ = ["WorkerApp"]
