"""A saved run behind HTTP: lists by outside ids, one whole model an answer.

served    a loaded run, and the ranking of many wishes at once
batching  requests that arrive together are ranked together, in one thread
limits    who may ask, how much, and how a refusal looks
schemas   what requests and answers are
metrics   counts for Prometheus
app       the routes
server    address, key, signals
"""
