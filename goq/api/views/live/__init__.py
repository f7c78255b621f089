"""The current work of the cluster: totals of topics and groups, and the load of nodes.

view          samples of the topics of this node
topic_view    one topic, counted again where something changed
group_table   the counts of all groups of a topic
node_load     what this node uses
merge         the parts of a topic on several nodes as one
selection     the topics that a looker asks for
board         the sample that lookers share, and lines of what changed in it
"""
