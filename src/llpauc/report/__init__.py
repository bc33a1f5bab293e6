"""What people look at: a run, its users and their ROC curves, as plain JSON and one HTML page.

runs      a saved run, and what a page says of it
people    one user: history, list, and where the held-out items stand
titles    names of items from a file
tuning    the trials of a study over alpha and beta
report    all of it for a file that needs no server
document  the HTML page around it

The page (page.html, page.css, page.js) computes everything that depends on alpha and beta itself,
from the ranks of a user's positives among the negatives.
"""
