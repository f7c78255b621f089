"""The current work of the cluster: totals of topics and groups, and the load of nodes.

view       samples of this node
merge      the parts of a topic on several nodes as one
selection  the topics that a looker asks for
board      the sample that lookers share, and lines of what changed in it
"""
