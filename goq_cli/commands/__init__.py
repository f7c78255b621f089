"""One module a command; a module is imported only when its command runs.

serve      run a node
produce    publish lines, files or JSON
consume    print messages, or run a command for each
worker     run the workers of a Python program
replay     replay the log: to stdout, into a topic, or to a group
trace      the life of a message
peek       look at messages without leasing them
grep       the messages that contain a text
schedule   periodic messages
scheduled  list scheduled messages
message    show, cancel, reschedule or re-prioritise single messages
topic      create, list, show, alter, delete topics
group      list, show, set, reset, delete consumer groups
dlq        list, show, redrive, purge dead letters
cluster    nodes, leaders, replicas, reassignments, recovery
export     topics as Parquet for Spark
report     analyses of exported topics
republish  messages chosen by SQL, published again
backup     backups, listed, verified and pruned
restore    a data folder of a backup
top        what nodes, topics and groups do now
doctor     the health of a node, or of a data folder
bench      a quick measurement of a node
audit      the audit trail
token      create, list, rotate, revoke tokens
context    servers remembered by name
completion  completion in a shell
version    the version of the program
"""
