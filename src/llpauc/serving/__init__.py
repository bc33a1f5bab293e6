"""A saved run behind HTTP: lists by outside ids, one whole model an answer.

served         a loaded run, and the ranking of many wishes at once
small_batches  lists for a few people at the price of a few
batching       requests that arrive together are ranked together, in threads of their own
limits         who may ask, how much, and how a refusal looks
protocol       the same for a connection, before there is a request
schemas        what requests and answers are
shortcut       the quick way to the routes that are asked most
metrics        counts for Prometheus
page           the page at /
app            the routes
server         address, key, signals
"""
