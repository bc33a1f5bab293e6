"""`llpauc recommend`: recommendation lists from a saved run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import TableData, log, print_json, print_result, progress
from llpauc.cli.system import check_file, load_run
from llpauc.options import Count, Positive

if TYPE_CHECKING:
    from llpauc.data.ids import IdMap
    from llpauc.recommend.approximate import ApproximateRanker
    from llpauc.recommend.fitted import Fitted
    from llpauc.recommend.lists import ListRequest, ListUsers

_ROWS_ON_SCREEN = 100


def recommend(
    run: str,
    *,
    users: str | None = None,
    history: str | None = None,
    k: Count = 20,
    out: str | None = None,
    seen: bool = False,
    exclude: str | None = None,
    allow: str | None = None,
    deny: str | None = None,
    items: str | None = None,
    where: str | None = None,
    at_most: Count | None = None,
    per: str | None = None,
    memory_mb: Positive = 1024.0,
    approximate: bool = False,
    json: bool = False,
) -> None:
    """Recommend items with a saved run: to all its users, to some, or to a new user.

    A list of ids is ID,ID,... or @FILE: a text file with one id per line, or a .csv, .tsv or
    .parquet table with a column of ids. Processes that torchrun started divide the users of a file
    among them.

    Args:
        run: a run folder written by llpauc train
        users: recommend to these users; by default to all users
        history: recommend to a new user with these items
        k: length of the lists
        out: write to this file (.tsv, .csv, .parquet, .jsonl or .trec; text files may end in .gz)
            instead of the screen
        seen: recommend items that a user already has, too
        exclude: which items of a user are left out: all that the user has an event with, none, or
            those with an event of these types; by default as the run was trained
        allow: recommend only these items
        deny: do not recommend these items
        items: the catalogue, a table with a column of item ids, in which new items may have been
            added; by default that of the run
        where: recommend only items for which this condition on the catalogue is true, such as
            "in_stock and category in ('shoes', 'bags')"
        at_most: items of a list with the same value of the column --per of the catalogue
        per: that column, such as category
        memory_mb: memory limit for scores and lists, besides the model
        approximate: search only a part of the items, with faiss, and measure which fraction of the
            exact lists is found; for models with vectors and more than half a million items
        json: print the lists as JSON
    """
    from llpauc.data.catalogue import read_catalogue
    from llpauc.errors import InputError
    from llpauc.recommend.fitted import ids_or_none
    from llpauc.recommend.list_files import list_format
    from llpauc.recommend.lists import (
        ListRequest,
        ListUsers,
        Recommendations,
        hidden_items,
        write_lists,
    )

    # Check the options and read the id lists before the run is loaded
    if users is not None and history is not None:
        raise InputError("--users are users of the run, --history a new user; give one of them")
    if approximate and history is not None:
        raise InputError("--approximate is for many users; leave it out with --history")
    if approximate and at_most is not None:
        raise InputError("--at-most needs exact lists; leave --approximate out")
    user_ids = parse_ids(users, "--users", "user")
    item_ids = parse_ids(history, "--history", "item")
    allowed, denied = parse_ids(allow, "--allow", "item"), parse_ids(deny, "--deny", "item")
    check_file(out)
    if out is not None:
        list_format(out)
    fitted = load_run(run).excluding(exclude)
    if items is not None:
        fitted = fitted.with_catalogue(read_catalogue(items), fitted.features)
    if fitted.types is not None and not seen:
        log.info(f"left out of the lists: {fitted.rules.excluded_text}")
    hidden = hidden_items(
        len(fitted.item_ids),
        _known_items(fitted, "--allow", allowed),
        fitted.catalogue_rules.allowed(where),
        deny=_known_items(fitted, "--deny", denied),
    )
    limit = fitted.catalogue_rules.limit(at_most, per)
    request = ListRequest(min(k, len(fitted.item_ids)), not seen, hidden, memory_mb, limit)

    def show(ids: list[Any], ranked: Any) -> None:
        """Print lists, or write those of a new user to a file."""
        lists = Recommendations(ids, ids_or_none(fitted.item_ids, ranked[0]), ranked[1])
        if out is None:
            columns = ["user", "item", "rank", "score"]
            rows = [] if json else lists.rows()
            print_result(
                lists.as_dicts(), json, TableData("Recommendations", columns, rows, left=2)
            )
            return
        write_lists(lists, out)
        log.info(f"wrote {lists.count:,} recommendations for {len(ids):,} users to {out}")
        if json:
            print_json({"out": out, "users": len(ids), "recommendations": lists.count})

    # A new user
    if item_ids is not None:
        item_ids = _undivided(fitted.item_ids, history, item_ids)
        new = fitted.history_of(_known_items(fitted, "--history", item_ids))
        show(["new"], fitted.rank_histories(new, request.k, not seen, hidden, limit=limit))
        return

    # Users of the run, to a file
    if user_ids is None:
        list_users = ListUsers.all_of(fitted)
    else:
        list_users = ListUsers.given(fitted, _undivided(fitted.user_ids, users, user_ids))
    if list_users.n_unknown:
        log.info(
            f"unknown users: {list_users.n_unknown:,}; they get the list of users without history"
        )
    if out is not None:
        tag = "-".join(Path(run).resolve().name.split()) or "llpauc"
        _write(fitted, list_users, request, out, tag, approximate, json)
        return

    # Users of the run, to the screen
    n_users = len(list_users.indices)
    if user_ids is None and not json:
        n_users = min(n_users, max(1, _ROWS_ON_SCREEN // request.k))
    indices = list_users.indices[:n_users]
    ranker = _approximate_ranker(fitted, request) if approximate else None
    with progress("ranking", n_users) as advance:
        if ranker is not None:
            ranked = ranker(indices)
        else:
            ranked = fitted.rank_users(
                indices, request.k, not seen, hidden, limit, memory_mb=memory_mb, progress=advance
            )
    show(list_users.ids.ids(range(n_users)).tolist(), ranked)
    if ranker is not None:
        _measure_recall(ranker)
    if user_ids is None and n_users < len(fitted.user_ids):
        log.info(
            f"the first {n_users:,} of {len(fitted.user_ids):,} users;"
            " --out FILE or --json gives all, --users ID,ID some"
        )


def _write(
    fitted: Fitted,
    users: ListUsers,
    request: ListRequest,
    out: str,
    tag: str,
    approximate: bool,
    json: bool,
) -> None:
    """Rank many users block by block, and write their lists to a file."""
    from llpauc.recommend.lists import write_recommendations

    ranker = _approximate_ranker(fitted, request) if approximate else None
    start = time.perf_counter()
    with progress("ranking", len(users.indices)) as advance:
        written = write_recommendations(
            fitted, out, request, users, ranker=ranker, tag=tag, progress=advance
        )
    seconds = max(time.perf_counter() - start, 1e-9)
    log.info(f"wrote {written.rows:,} recommendations for {written.users:,} users to {out}")
    log.info(
        f"{written.users / seconds:,.0f} users per second, in blocks of {written.block:,};"
        f" at most {request.memory_mb:g} MB besides the model"
    )
    if written.empty:
        log.info(f"users with no item left to recommend: {written.empty:,}; they have no list")
    result: dict[str, Any] = {
        "out": out,
        "users": written.users,
        "recommendations": written.rows,
        "users_without": written.empty,
    }
    if ranker is not None:
        result["recall"] = _measure_recall(ranker)
    if json:
        print_json(result)


def _approximate_ranker(fitted: Fitted, request: ListRequest) -> ApproximateRanker:
    from llpauc.recommend.approximate import ApproximateRanker

    with progress("building the index"):
        ranker = ApproximateRanker(fitted, request)
    log.info(
        f"approximate: {ranker.searched_cells:,} of {ranker.cells:,} cells of items are searched"
    )
    return ranker


def _measure_recall(ranker: ApproximateRanker) -> float:
    recall, users = ranker.measured_recall()
    log.info(f"approximate: {recall:.1%} of the exact lists found, for a sample of {users:,} users")
    return float(recall)


def _known_items(fitted: Fitted, flag: str, ids: list[Any] | None) -> Any:
    """Indices of the items that the run knows; the others are counted in a message."""
    from llpauc.errors import InputError

    if ids is None:
        return None
    indices = fitted.item_ids.indices(ids)
    unknown = int((indices < 0).sum())
    if unknown == len(indices):
        raise InputError(
            f"{flag} names no item of the run, such as {str(ids[0])[:80]!r}; a file is given as"
            f" {flag} @FILE, with one id per line or a table with an item column"
        )
    if unknown:
        log.info(f"unknown items in {flag}: {unknown:,} of {len(indices):,}; they are ignored")
    return indices[indices >= 0]


def _undivided(known: IdMap, text: str | None, ids: list[Any]) -> list[Any]:
    """The whole text if it is an id of the run, which may contain commas; else the ids."""
    is_id = text is not None and "," in text and known.indices([text])[0] >= 0
    return [text] if is_id else ids


def parse_ids(text: str | None, flag: str, role: Literal["user", "item"]) -> list[Any] | None:
    """The ids in "ID,ID" or in a file "@FILE"; None stays None."""
    from llpauc.data.readers import read_ids
    from llpauc.errors import InputError

    if text is None:
        return None
    if text.startswith("@"):
        ids = read_ids(text[1:], role)
    else:
        ids = [word for word in map(str.strip, text.split(",")) if word]
    if not ids:
        raise InputError(f"{flag} {text!r} contains no id; give an id")
    return ids
