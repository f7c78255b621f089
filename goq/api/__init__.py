"""The node's HTTP interface: routes over the broker, JSON for people and frames for speed.

app             the composition: routes, router, and in a cluster the gateway before it
gateway         answers of several nodes, for a client that may ask any of them
router          finds the route of each request, and counts the answers
route           the declaration of what a method and a path take, answer and need
routing_policy  the nodes that answer a route when several lead the topic's partitions
routes          declarations and handlers, a module for each resource
needs           what a route needs of the sender of a request
access_control  who sends a request, and whether the route lets the sender do it
schemas         JSON bodies of requests and answers
codec           request bodies in, answers out, as JSON or as frames
views           the broker's state for answers, and merges of the answers of several nodes
values          the values of parameters and bodies, as OpenAPI describes them
metrics         Prometheus text of a node and of its cluster
openapi         the OpenAPI document and its page, made of the routes
"""
