"""The operations of the SQS-compatible endpoint.

queue_directory  the queue that a request names, and changes of its record
queues           create, list, delete, attributes, purge
tags             the tags of queues
permissions      AddPermission, RemovePermission
moves            start, list and cancel of message move tasks
move_task        one running move task
batch            bounds of batches, and results of their entries
send             operations that send
receive          ReceiveMessage
settle           operations on receipt handles
"""
