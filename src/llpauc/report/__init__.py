"""The page that `llpauc serve` and `llpauc report` show: its data as plain JSON, and its HTML.

The page's script (page.js) computes everything that depends on alpha and beta, from the ranks of a
user's positives among the negatives.
"""
