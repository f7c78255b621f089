"""The screen of ``goq top``: rates of two states of the cluster, as tables or as JSON.

rates       rates of topics, groups and nodes, of two states
sections    rates as rows of tables
"""
