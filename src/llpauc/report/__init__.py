"""The page that `llpauc serve` and `llpauc report` show: its data as plain JSON, and its HTML.

The page's script (page.js) computes everything that depends on alpha and beta, from the ranks of a
user's positives among the negatives.
"""

from llpauc.report.document import page_policy, render_page
from llpauc.report.page_data import PageRun, load_page_run, read_titles, report_data, run_summary
from llpauc.report.tuning import read_tuning
from llpauc.report.users import ItemTable, UserView, find_users, spread_users, view_users

__all__ = [
    "ItemTable",
    "PageRun",
    "UserView",
    "find_users",
    "load_page_run",
    "page_policy",
    "read_titles",
    "read_tuning",
    "render_page",
    "report_data",
    "run_summary",
    "spread_users",
    "view_users",
]
