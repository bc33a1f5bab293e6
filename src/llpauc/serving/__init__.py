"""A saved run behind HTTP: recommendation lists by user id and item id.

A request passes limits.py (key, size, time), app.py (the route), batching.py (requests that arrive
together), loaded_run.py (ids and filters) and `llpauc.evaluation.ranking`.
"""

from llpauc.serving.app import ServingState, make_app
from llpauc.serving.loaded_run import LoadedRun, load_run
from llpauc.serving.server import serve_run

__all__ = ["LoadedRun", "ServingState", "load_run", "make_app", "serve_run"]
