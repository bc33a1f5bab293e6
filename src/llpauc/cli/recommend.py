"""`llpauc recommend`: from a saved run to lists."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import log, print_json, progress, show_table
from llpauc.cli.system import check_file, check_run_fits_memory
from llpauc.options import Count, Positive

if TYPE_CHECKING:
    from llpauc.data.ids import IdMap
    from llpauc.recommend.fitted import Fitted
    from llpauc.recommend.lists import ListRequest, ListUsers

_ROWS_ON_SCREEN = 100


def recommend(
    run: str,
    *,
    users: str | None = None,
    items: str | None = None,
    k: Count = 20,
    out: str | None = None,
    seen: bool = False,
    allow: str | None = None,
    deny: str | None = None,
    memory_mb: Positive = 1024.0,
    approximate: bool = False,
    json: bool = False,
) -> None:
    """Recommend with a saved run: to all its users, to some, or to somebody new.

    A list of ids is ID,ID,... or @FILE: one id a line, or a .csv, .tsv or .parquet table with a
    column of them.

    Args:
        run: a run folder written by llpauc train
        users: recommend to these; to all users unless given
        items: recommend to somebody new who has these items
        k: length of the lists
        out: write to this file (.tsv, .csv, .parquet, .jsonl or .trec; text may end in .gz too)
            instead of the screen
        seen: recommend what a user has already, too
        allow: recommend nothing but these items
        deny: recommend none of these items
        memory_mb: most memory beside the model, for scores and lists under way
        approximate: look at some items only, by faiss, and measure what share of the exact lists
            is found; for models of vectors with more than half a million items
        json: print the lists as JSON
    """
    from llpauc.errors import InputError
    from llpauc.recommend import Recommender
    from llpauc.recommend.list_files import list_format
    from llpauc.recommend.lists import ListRequest, ListUsers, hidden_items

    if users is not None and items is not None:
        raise InputError("--users are known people, --items make somebody new; give one of them")
    if approximate and items is not None:
        raise InputError("--approximate is for many users; leave it out with --items")
    given = None if users is None else read_ids(users, "--users", "user")
    has = None if items is None else read_ids(items, "--items", "item")
    chosen = {
        option: None if words is None else read_ids(words, option, "item")
        for option, words in (("--allow", allow), ("--deny", deny))
    }
    check_file(out)
    if out is not None:
        list_format(out)
    check_run_fits_memory(run)
    fitted = Recommender.load(run).require_fitted()
    given = _one_id_with_commas(fitted.user_ids, users, given)
    has = _one_id_with_commas(fitted.item_ids, items, has)
    rows = {option: _known_items(fitted, option, ids) for option, ids in chosen.items()}
    hidden = hidden_items(len(fitted.item_ids), rows["--allow"], rows["--deny"])
    request = ListRequest(min(k, len(fitted.item_ids)), not seen, hidden, memory_mb)
    if has is not None:
        history = fitted.history_of(_known_items(fitted, "--items", has))
        ranked = fitted.rank_histories(history, request.k, not seen, hidden)
        _show(fitted, ["new"], *ranked, out, json)
        return
    list_users = ListUsers.all_of(fitted) if given is None else ListUsers.given(fitted, given)
    if list_users.n_unknown:
        log.info(
            f"unknown users: {list_users.n_unknown:,}; they get what a user without history gets"
        )
    if out is not None:
        _write(fitted, list_users, request, run, out, approximate, json)
        return
    if given is None and not json:
        some = max(1, _ROWS_ON_SCREEN // request.k)
        list_users = ListUsers(list_users.indices[:some], list_users.ids)
    ranker = _ranker(fitted, request) if approximate else None
    with progress("ranking", len(list_users.indices)) as advance:
        if ranker is not None:
            ranked = ranker(list_users.indices)
        else:
            ranked = fitted.rank_users(
                list_users.indices,
                request.k,
                not seen,
                hidden,
                memory_mb=memory_mb,
                progress=advance,
            )
    _show(fitted, list_users.ids.ids(range(len(list_users.indices))).tolist(), *ranked, None, json)
    if ranker is not None:
        _recall(ranker)
    if given is None and len(list_users.indices) < len(fitted.user_ids):
        log.info(
            f"the first {len(list_users.indices):,} of {len(fitted.user_ids):,} users;"
            " --out FILE or --json gives all, --users ID,ID some"
        )


def _show(
    fitted: Fitted, users: Any, ranked: Any, scores: Any, out: str | None, json: bool
) -> None:
    """Lists that fit into memory, on the screen or in a file."""
    from llpauc.recommend.fitted import ids_or_none
    from llpauc.recommend.lists import Recommendations, write_lists

    lists = Recommendations(users, ids_or_none(fitted.item_ids, ranked), scores)
    if out is not None:
        write_lists(lists, out)
        log.info(f"wrote {lists.count:,} recommendations for {len(users):,} users to {out}")
        if json:
            print_json({"out": out, "users": len(users), "recommendations": lists.count})
    elif json:
        print_json(lists.as_dicts())
    else:
        show_table("Recommendations", ["user", "item", "rank", "score"], lists.rows(), left=2)


def _write(
    fitted: Fitted,
    list_users: ListUsers,
    request: ListRequest,
    run: str,
    out: str,
    approximate: bool,
    json: bool,
) -> None:
    """Lists for many users, block by block."""
    from pathlib import Path

    from llpauc.recommend.lists import write_recommendations

    ranker = _ranker(fitted, request) if approximate else None
    tag = "-".join(Path(run).resolve().name.split()) or "llpauc"
    begun = time.perf_counter()
    with progress("ranking", len(list_users.indices)) as advance:
        written = write_recommendations(
            fitted, out, request, list_users, ranker=ranker, tag=tag, progress=advance
        )
    seconds = max(time.perf_counter() - begun, 1e-9)
    log.info(f"wrote {written.rows:,} recommendations for {written.users:,} users to {out}")
    log.info(
        f"{written.users / seconds:,.0f} users a second, in blocks of {written.block:,};"
        f" at most {request.memory_mb:g} MB beside the model"
    )
    if written.empty:
        log.info(
            f"users with no item left to recommend: {written.empty:,}; the file has none of them"
        )
    told = {
        "out": out, "users": written.users, "recommendations": written.rows,
        "users_without": written.empty,
    }  # fmt: skip
    if ranker is not None:
        told["recall"] = _recall(ranker)
    if json:
        print_json(told)


def _ranker(fitted: Fitted, request: ListRequest) -> Any:
    from llpauc.recommend.approximate import ApproximateRanker

    with progress("making the index"):
        ranker = ApproximateRanker(fitted, request)
    log.info(
        f"approximate: {ranker.searched_cells:,} of {ranker.cells:,} cells of items are searched"
    )
    return ranker


def _recall(ranker: Any) -> float:
    recall, users = ranker.measured_recall()
    log.info(f"approximate: {recall:.1%} of the exact lists found, for a sample of {users:,} users")
    return float(recall)


def _known_items(fitted: Fitted, option: str, ids: list[Any] | None) -> Any:
    """Indices of the items a run knows; the others are counted aloud."""
    from llpauc.errors import InputError

    if ids is None:
        return None
    rows = fitted.item_ids.indices(ids)
    unknown = int((rows < 0).sum())
    if unknown == len(rows):
        raise InputError(
            f"{option} names no item of the run, such as {str(ids[0])[:80]!r};"
            f" a file is given as {option} @FILE, an id a line or a table with its item column"
        )
    if unknown:
        log.info(f"unknown items in {option}: {unknown:,} of {len(rows):,}; they are passed over")
    return rows[rows >= 0]


def _one_id_with_commas(known: IdMap, text: str | None, ids: list[Any] | None) -> list[Any] | None:
    """The text itself where that is an id of the run, commas and all; else what it was cut into."""
    whole = text is not None and "," in text and known.indices([text])[0] >= 0
    return [text] if whole else ids


def read_ids(text: str, option: str, role: str) -> list[Any]:
    """Ids between commas, or those of @FILE."""
    from pathlib import Path

    from llpauc.errors import InputError

    if not text.startswith("@"):
        ids: list[Any] = [word for word in text.split(",") if word]
    elif Path(text).suffix.lower() in (".csv", ".tsv", ".parquet"):
        ids = _column(Path(text[1:]), role)
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


def _column(path: Any, role: str) -> list[Any]:
    """The ids in a table, each once, in order; the column is the one a reader would guess."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    from llpauc.data.columns import KNOWN_NAMES, normalized_name
    from llpauc.data.ids import IdMap
    from llpauc.errors import InputError

    def column_of(names: list[str]) -> str:
        for known in KNOWN_NAMES[role]:
            for name in names:
                if normalized_name(name) == known:
                    return name
        raise InputError(
            f"{path}: has no column of {role} ids; name it {role!r}, or give one id a line in a"
            " .txt file"
        )

    try:
        if path.suffix.lower() == ".parquet":
            name = column_of(pq.read_schema(path).names)
            values = pq.read_table(path, columns=[name])[name]
        else:
            shape = csv.ParseOptions(
                delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True
            )
            with csv.open_csv(path, parse_options=shape) as reader:
                name = column_of(reader.schema.names)
            as_text = csv.ConvertOptions(
                include_columns=[name], column_types={name: pa.large_string()}
            )
            values = csv.read_csv(path, parse_options=shape, convert_options=as_text)[name]
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read: No such file or directory") from None
    except (pa.ArrowInvalid, OSError) as error:
        told = str(error).partition("\n")[0]
        raise InputError(f"{path}: is no table that can be read: {told}") from None
    ids: list[Any] = IdMap.of(values).ids(range(len(IdMap.of(values)))).tolist()
    return ids
