"""Backups of a node: content-addressed objects and manifests in a folder, and the way back.

manifest          what one backup has
place             the folder of backups, or the prefix in a store: objects, manifests, its lock
planned_files     the files of a partition, as one moment has them
data_dir_source   the plan for the data folder of a stopped node
node_source       the plan for a running node
cluster_source    the plan for a running cluster, and reads from its leaders
object_writer     copies of planned files as objects
backup            one backup, from plan to manifest
node_backups      backups of a running node, on request and on a schedule
inspection        a check of every stored byte, and removal of old backups
topic_restorer    the logs of a topic from a backup
restore           a new data folder from a backup
node_restores     restores of single topics into a running node
"""
