"""`llpauc report`: runs as one HTML file that needs no server."""

from __future__ import annotations

from llpauc.cli.console import log, print_json, progress
from llpauc.cli.memory_limit import check_room
from llpauc.cli.outputs import check_file, make_folder_of


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

    The file holds all it needs, fetches nothing and can be passed on; it names the users and items
    it shows. The users are those of the first run. llpauc serve shows the same page for all users
    of a run.

    Args:
        runs: run folders written by llpauc train
        out: the file to write
        items: CSV or TSV file with the columns item and title
        tuning: folder that llpauc tune wrote, for its map over alpha and beta
        users: how many, spread from the least to the most active; or their ids, separated by
            commas, or @FILE with one a line; unless given 200, fewer where they take above 2 MB
        json: print what was written as JSON
    """
    from llpauc.errors import InputError
    from llpauc.report.document import render
    from llpauc.report.report import report_data
    from llpauc.report.runs import load_run
    from llpauc.report.titles import read_titles
    from llpauc.report.tuning import read_tuning
    from llpauc.storage.atomic import atomic_write

    check_file(out)
    wanted = _users(users)
    titles, trials = read_titles(items), read_tuning(tuning)
    if len(set(runs)) < len(runs):
        raise InputError("a run is named twice; a report compares different ones")
    for run in runs:
        check_room(run)
    with progress("making the report"):
        data = report_data([load_run(run) for run in runs], wanted, titles, trials)
        page = render(data)
        make_folder_of(out)
        with atomic_write(out) as temporary:
            temporary.write_bytes(page)
    shown = len(data["users"])
    if json:
        print_json({"out": out, "runs": len(runs), "users": shown, "bytes": len(page)})
    else:
        log.info(f"wrote {out}: {len(runs)} runs, {shown:,} users, {len(page) / 1e6:.2f} MB")


def _users(text: str | None) -> int | list[str] | None:
    """A number is how many; everything else is ids."""
    from llpauc.cli.recommend import _ids
    from llpauc.errors import check_at_least

    if text is None:
        return None
    if text.isdecimal():
        return check_at_least("users", int(text), 1)
    return [str(word) for word in _ids(text, "--users", "user")]
