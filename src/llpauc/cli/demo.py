"""`llpauc demo`: a first look in a minute, on data made up on the spot."""

from __future__ import annotations

from llpauc.cli.console import note, print_json, show_table


def demo(out: str = "demo", json: bool = False) -> None:
    """Make up a small data set, evaluate models on it, and draw the comparison.

    Two thousand people, six hundred films: a long tail, tastes, clicks without meaning, and people
    nobody has seen before. Nothing is downloaded.

    Args:
        out: folder for the data, the table and the picture
        json: print the results as JSON
    """
    from pathlib import Path

    from llpauc import plots
    from llpauc.demo import demo_data
    from llpauc.evaluation import evaluate
    from llpauc.files import write_split
    from llpauc.models import BASELINES

    data = demo_data()
    folder = Path(out)
    write_split(data.split, folder / "films", format="csv")
    results = {
        name: evaluate(fit(data.split.train), data.split).summary()
        for name, fit in BASELINES.items()
    }
    figure = plots.compare_models(results, ["recall@20", "ndcg@20"], "Demo: films, test users")
    picture = plots.save(figure, folder / "models.png")
    if json:
        print_json(results)
        return
    show_table(
        f"Demo: {data.split.n_users:,} people, {data.split.n_items} films, full ranking",
        ["model", "users", "number", "recall@20", "ndcg@20"],
        [
            [name, group, *figures.values()]
            for name, summary in results.items()
            for group, figures in summary.items()
        ],
        left=2,
    )
    note(f"wrote {picture} and the data as CSV in {folder / 'films'}")
    note("next: llpauc data inspect " + str(folder / "films"))
    note("      llpauc evaluate YOUR_FILE.csv")
