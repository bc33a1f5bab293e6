"""`llpauc demo`: a first look in a minute, on data made up on the spot."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import command_name, log, print_json, progress, show_table
from llpauc.cli.system import check_folder

if TYPE_CHECKING:
    from pathlib import Path

    from llpauc.data.demo import DemoData
    from llpauc.recommend import Recommender

# All items as negatives and a temperature-scaled cosine, as suits a small catalogue.
_SETTINGS: dict[str, Any] = {
    "alpha": 0.7, "beta": 0.3, "score": "cosine", "temperature": 0.25, "sampler": "all-items",
    "batch_size": 1024, "lr": 0.01, "epochs": 60, "seed": 1,
}  # fmt: skip


def demo(out: str = "demo", json: bool = False) -> None:
    """Make up a small data set, train LLPAUC on it, and compare it with what needs no training.

    Two thousand people, six hundred films: a long tail, tastes, clicks without meaning, and people
    nobody has seen before. Nothing is downloaded.

    Args:
        out: folder for the data, the films' titles, the trained run and the picture
        json: print the results as JSON
    """
    from pathlib import Path

    from llpauc.data import plots
    from llpauc.data.demo import demo_data
    from llpauc.data.writers import write_split
    from llpauc.evaluation.full_ranking import evaluate
    from llpauc.recommend import Recommender
    from llpauc.storage import figure_files

    check_folder(out)
    data = demo_data()
    split, folder = data.split, Path(out)
    write_split(split, folder / "films", format="csv")
    titles = _write_titles(data, folder / "titles.csv")
    models = {
        "popularity": Recommender(model="popularity"),
        "EASE": Recommender(model="ease"),
        "MF + LLPAUC": Recommender(**_SETTINGS),
    }
    results = {}
    for name, model in models.items():
        log.info(f"fitting {name} ...")
        with progress(name, len(split.train) * _SETTINGS["epochs"]) as advance:
            model.fit(split, on_batch=advance)
        if model.history is not None and model.history.signal is not None:
            raise KeyboardInterrupt  # training ends in peace, but the table would be a false one
        results[name] = evaluate(model.scorer(), split).summary()
    trained = models["MF + LLPAUC"]
    trained.save(folder / "run", data=str(folder / "films"), test=results["MF + LLPAUC"])
    figure = plots.compare_models(results, ["recall@20", "ndcg@20"], "Demo: films, test users")
    picture = figure_files.save(figure, folder / "models.png")
    if json:
        print_json(results)
        return
    show_table(
        f"Demo: {split.n_users:,} people, {split.n_items} films, {len(split.train):,} events to"
        " learn from; every film ranked for every person",
        ["model", "users", "number", "recall@20", "ndcg@20"],
        [
            [name, group, *figures.values()]
            for name, summary in results.items()
            for group, figures in summary.items()
        ],
        left=2,
    )
    _show_somebody(trained, data)
    log.info(
        f"wrote the picture {picture}, the data {folder / 'films'}, {titles}, the model"
        f" {folder / 'run'}"
    )
    log.info(
        "LLPAUC is tuned on these made-up data, EASE is not: this shows the tool, not who is best"
    )
    log.info("what to try next:")
    me = command_name()
    films, run, names, page, bpr = (
        quote(str(folder / name)) for name in ("films", "run", titles.name, "page.html", "bpr")
    )
    log.info(f"  {me} data inspect {films}")
    log.info(f"  {me} recommend {run} --users u0042 -k 5")
    log.info(f"  {me} report {run} --items {names} --out {page}    # a page to look at")
    log.info(f"  {me} train {films} --loss bpr --out {bpr}")
    log.info(f"  {me} data inspect YOUR_FILE.csv")


def _write_titles(data: DemoData, path: Path) -> Path:
    """The films' names, for `llpauc report --items` and `llpauc serve --items`."""
    import pyarrow as pa

    from llpauc.data.writers import write_delimited
    from llpauc.storage.atomic import atomic_write

    table = pa.table({"item": list(data.titles), "title": list(data.titles.values())})
    with atomic_write(path) as temporary:
        write_delimited(table, temporary, ",")
    return path


def _show_somebody(trained: Recommender, data: DemoData) -> None:
    """One person's films beside what the model would show them."""
    somebody = "u0042"
    row = data.split.user_ids.indices([somebody])[0]
    train = data.split.train
    seen = data.split.item_ids.ids(train.items[train.users == row])
    ids, _ = trained.recommend([somebody], k=8)
    pairs = [(data.titles[a], data.titles[b]) for a, b in zip(seen, ids[0], strict=False)]
    show_table(f"Person {somebody}", ["has seen", "gets recommended"], pairs, left=2)
