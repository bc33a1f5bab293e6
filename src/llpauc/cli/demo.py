"""`llpauc demo`: train and compare models on generated data, in a minute."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from llpauc.cli.console import (
    TableData,
    command_name,
    log,
    metrics_table,
    print_result,
    progress,
)
from llpauc.cli.system import check_folder

if TYPE_CHECKING:
    from llpauc.data.demo import DemoData
    from llpauc.recommend import Recommender

_SHOWN_USER = "u0042"
_DEFAULT = "default (LLPAUC)"


def demo(out: str = "demo", json: bool = False) -> None:
    """Generate a small data set, train LLPAUC on it, and compare it with models without training.

    The data set has two thousand users and six hundred films, with a long tail, user preferences,
    random clicks, and users without training events. Nothing is downloaded.

    Args:
        out: folder for the data, the titles of the films, the trained run and the figure
        json: print the results as JSON
    """
    from llpauc.data.demo import demo_data
    from llpauc.data.plots import compare_models
    from llpauc.data.writers import write_split
    from llpauc.evaluation.full_ranking import evaluate
    from llpauc.recommend import Recommender
    from llpauc.storage import figure_files

    check_folder(out, replaced=False)
    data, folder = demo_data(), Path(out)
    split, films, titles, run = data.split, folder / "films", folder / "titles.csv", folder / "run"
    write_split(split, films, format="csv")
    _write_titles(data, titles)

    # Fit and measure
    trained = Recommender(seed=1)
    models = {
        "popularity": Recommender(model="popularity", refit=True),
        "EASE": Recommender(model="ease", refit=True),
        "iALS": Recommender(model="ials", refit=True),
        _DEFAULT: trained,
    }
    results = {}
    for name, model in models.items():
        log.info(f"fitting {name} ...")
        with progress(name) as advance:
            model.fit(split, on_batch=advance)
        if model.history is not None and model.history.signal is not None:
            raise KeyboardInterrupt  # the metrics of an interrupted training would mislead
        results[name] = evaluate(model.scorer(), split).summary()
    trained.save(run, data=str(films), test=results[_DEFAULT])
    figure = compare_models(results, ["recall@20", "ndcg@20"], "Demo: films, test users")
    figure_path = figure_files.save(figure, folder / "models.png")

    # Print the results and some commands to try
    title = (
        f"Demo: {split.n_users:,} users, {split.n_items} films, {len(split.train):,} training"
        " events; all films are ranked for every user"
    )
    print_result(results, json, metrics_table(title, results), _user_table(trained, data))
    if json:
        return
    log.info(f"wrote the figure {figure_path}, the data {films}, {titles}, the model {run}")
    log.info(
        f"{_DEFAULT} is what `train` does without options; here it is"
        f" {trained.require_fitted().model.description}, with weights chosen on validation"
    )
    me, page, bpr = command_name(), folder / "page.html", folder / "bpr"
    log.info("what to try next:")
    for words in (
        ["data", "inspect", films],
        ["recommend", run, "--users", _SHOWN_USER, "-k", 5],
        ["report", run, "--items", titles, "--out", page],
        ["train", films, "--loss", "bpr", "--out", bpr],
        ["data", "inspect", "YOUR_FILE.csv"],
        ["auto", "YOUR_FILE.csv", "--budget", "10m"],
    ):
        log.info(f"  {me} {' '.join(quote(str(word)) for word in words)}")


def _write_titles(data: DemoData, path: Path) -> None:
    """Write a file for `llpauc report --items` and `llpauc serve --items`."""
    import pyarrow as pa

    from llpauc.data.writers import write_delimited
    from llpauc.storage.atomic import atomic_write

    table = pa.table({"item": list(data.titles), "title": list(data.titles.values())})
    with atomic_write(path) as temporary:
        write_delimited(table, temporary, ",")


def _user_table(trained: Recommender, data: DemoData) -> TableData:
    """The films of one user, and the films that the model recommends to this user."""
    train = data.split.train
    user = data.split.user_ids.indices([_SHOWN_USER])[0]
    seen = data.split.item_ids.ids(train.items[train.users == user])
    recommended, _ = trained.recommend([_SHOWN_USER], k=8)
    pairs = zip(seen, recommended[0], strict=False)
    rows = [[data.titles[item] for item in pair] for pair in pairs]
    return TableData(f"User {_SHOWN_USER}", ["has seen", "is recommended"], rows, left=2)
