"""The screen of ``goq top``: rates of two states of the cluster, as tables or as JSON.

rates       rates of topics, groups and nodes, of two states
sections    rates as rows of tables
keyboard    keys of what a terminal sends
view        what is sorted, filtered, chosen, open; its lines
feed        the thread that asks the node
screen      the terminal: keys, signals, drawing
"""
