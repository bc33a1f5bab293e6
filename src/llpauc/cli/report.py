"""`llpauc report`: runs as one HTML file."""

from __future__ import annotations

from llpauc.cli.console import log, print_json, progress
from llpauc.cli.recommend import parse_ids
from llpauc.cli.system import check_file, check_run_fits_memory, make_folder_of


def report(
    runs: list[str],
    *,
    out: str = "report.html",
    items: str | None = None,
    tuning: str | None = None,
    users: str | None = None,
    json: bool = False,
) -> None:
    """Write runs as one HTML page: users, lists, ROC curves, training, tuning.

    The file loads nothing else and can be given to others; it contains the ids of the users and
    items it shows. The users are those of the first run. llpauc serve shows the same page for all
    users of a run.

    Args:
        runs: run folders written by llpauc train
        out: the file to write
        items: CSV or TSV file with the columns item and title
        tuning: folder written by llpauc tune, for its map over alpha and beta
        users: how many, spread from the least to the most active; or ids, separated by commas, or
            @FILE with one per line; by default 200, fewer where the file would exceed 2 MB
        json: print a summary of the file as JSON
    """
    from llpauc.errors import InputError, check_at_least
    from llpauc.report.document import render_page
    from llpauc.report.page_data import load_page_run, read_titles, report_data
    from llpauc.report.tuning import read_tuning
    from llpauc.storage.atomic import atomic_write

    check_file(out)
    shown: int | list[str] | None = None
    if users is not None and users.isdecimal():
        shown = check_at_least("users", int(users), 1)
    elif (ids := parse_ids(users, "--users", "user")) is not None:
        shown = [str(user) for user in ids]
    titles, trials = read_titles(items), read_tuning(tuning)
    if len(set(runs)) < len(runs):
        raise InputError("a run is given twice; give different runs")
    for run in runs:
        check_run_fits_memory(run)
    with progress("writing the report"):
        data = report_data([load_page_run(run) for run in runs], shown, titles, trials)
        page = render_page(data)
        make_folder_of(out)
        with atomic_write(out) as temporary:
            temporary.write_bytes(page)
    n_users = len(data["users"])
    if json:
        print_json({"out": out, "runs": len(runs), "users": n_users, "bytes": len(page)})
    else:
        log.info(f"wrote {out}: {len(runs)} runs, {n_users:,} users, {len(page) / 1e6:.2f} MB")
