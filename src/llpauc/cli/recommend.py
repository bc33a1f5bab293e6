"""`llpauc recommend`: from a saved run to lists."""

from __future__ import annotations

from typing import Any

from llpauc.cli.console import note, print_json, progress, show_table
from llpauc.cli.outputs import check_file
from llpauc.cli.parser import Count, Positive


def recommend(
    run: str,
    *,
    users: str | None = None,
    items: str | None = None,
    k: Count = 20,
    out: str | None = None,
    seen: bool = False,
    memory_mb: Positive = 1024.0,
    json: bool = False,
) -> None:
    """Recommend with a saved run: to all its users, to some, or to somebody new.

    Args:
        run: a run folder written by llpauc train
        users: ids separated by commas, or @FILE with one a line; all users unless given
        items: recommend to somebody new who has these items (ids separated by commas)
        k: length of the lists
        out: write to this file (.tsv, .csv or .parquet) instead of the screen
        seen: recommend what a user has already, too
        memory_mb: most memory for score blocks
        json: print the lists as JSON
    """

    from llpauc.errors import InputError
    from llpauc.recommend import Recommender, outside
    from llpauc.recommend.lists import ListRows, write_lists

    if users is not None and items is not None:
        raise InputError("--users are known people, --items make somebody new; give one of them")
    given = None if users is None else _ids(users, "--users")
    has = None if items is None else _ids(items, "--items")
    check_file(out)
    fitted = Recommender.load(run)._fitted()
    k = min(k, len(fitted.item_ids))
    if has is not None:
        asked: Any = ["new"]
        ranked, scores = fitted.rank_histories(fitted.history(has), k, not seen)
    else:
        asked = list(fitted.user_ids) if given is None else given
        if given is None and out is None and not json:
            asked = asked[: max(1, _ROWS_ON_SCREEN // k)]
        rows = fitted.user_ids.rows(asked)
        unknown = int((rows < 0).sum())
        if unknown:
            note(f"unknown users: {unknown:,}; they get what a user without history gets")
        with progress("ranking", len(rows)) as advance:
            ranked, scores = fitted.rank_rows(
                rows, k, not seen, memory_mb=memory_mb, progress=advance
            )
    lists = ListRows(asked, outside(fitted.item_ids, ranked), scores)
    if out is not None:
        write_lists(lists, out)
        note(f"wrote {lists.count:,} recommendations for {len(asked):,} users to {out}")
        if json:
            print_json({"out": out, "users": len(asked), "recommendations": lists.count})
    elif json:
        print_json(lists.as_dicts())
    else:
        found = [[user, item, rank, score] for user, rank, item, score in lists.head(lists.count)]
        show_table("Recommendations", ["user", "item", "rank", "score"], found, left=2)
        if has is None and len(asked) < len(fitted.user_ids) and given is None:
            note(
                f"the first {len(asked):,} of {len(fitted.user_ids):,} users;"
                " --out FILE or --json gives all, --users ID,ID some"
            )


_ROWS_ON_SCREEN = 100


def _ids(text: str, option: str) -> list[str]:
    """Ids between commas, or the lines of @FILE."""
    from pathlib import Path

    from llpauc.errors import InputError

    if not text.startswith("@"):
        ids = [word for word in text.split(",") if word]
    else:
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise InputError(f"{text[1:]}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{text[1:]}: is not UTF-8 text; one id a line is wanted") from None
        ids = [line for line in (line.removesuffix("\r") for line in lines) if line]
    if not ids:
        raise InputError(f"{option} {text!r} names nobody and nothing; give an id")
    return ids
