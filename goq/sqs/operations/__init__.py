"""The operations of the SQS-compatible endpoint.

queues       create, find, list, delete, attributes, tags, purge
permissions  AddPermission, RemovePermission
moves        start, list and cancel of message move tasks
move_task    one running move task
batch        bounds of batches, and results of their entries
send         operations that send
receive      ReceiveMessage
settle       operations on receipt handles
"""
