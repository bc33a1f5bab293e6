"""`llpauc update`: from a saved run and new events to a run that knows them."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from llpauc.cli.console import cell, command_name, log, print_json, progress, show_table
from llpauc.cli.data_options import Seed, TableOptions
from llpauc.cli.system import check_folder
from llpauc.options import NonNegative, NonNegativeInt, Positive

if TYPE_CHECKING:
    from llpauc.training import Epoch


def update(
    run: str,
    events: str,
    *,
    out: str | None = None,
    epochs: NonNegativeInt = 5,
    lr: Positive | None = None,
    weight_decay: NonNegative | None = None,
    seed: Seed | None = None,
    device: str | None = None,
    table: TableOptions,
    json: bool = False,
) -> None:
    """Go on from a saved run with new events, of known and of new users and items.

    Known ids keep their vectors, new ones get a start from what they go with; then all pairs, the
    run's and the new ones, are trained on for some epochs, with Adam begun anew. Models without
    training (popularity, itemknn, ease) are fitted anew on all pairs. Nothing is measured: keep
    test events back, and ask llpauc evaluate. Ctrl-C stops after the batch under way; what is there
    by then goes into a folder of its own.

    Args:
        run: a run folder written by llpauc train
        events: a file of interactions, or a folder with train and valid files
        out: where the new run goes; RUN is replaced unless given
        epochs: passes over all pairs; 0 gives new ids a start and trains nothing
        lr: learning rate (the run's unless given)
        weight_decay: pull of a batch's rows towards zero (the run's unless given)
        seed: of the order and the negatives (the run's unless given)
        device: cpu, or a torch device such as cuda (the run's unless given)
        json: print the outcome as JSON
    """
    from pathlib import Path

    from llpauc.data.interactions import Split
    from llpauc.recommend import Recommender
    from llpauc.storage import run_folder
    from llpauc.storage.manifest import MANIFEST

    target = run if out is None else out
    check_folder(target)
    run_folder.check_replaceable(target)
    artifact = run_folder.load(run)
    recommender, before = Recommender.from_run(artifact, run), artifact.meta
    data = table.load(events, min_ids=1)
    with progress("updating") as advance:
        came = recommender.update(
            data if isinstance(data, Split) else data.interactions,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            seed=seed,
            device=device,
            on_batch=advance,
            on_epoch=_tell,
        )
    facts = {
        "run": target, "new pairs": len(came.new), "new users": len(came.new_users),
        "new items": len(came.new_items), "known pairs": len(came.old),
    }  # fmt: skip
    if not len(came.new):
        log.info(f"nothing new in {events}: {run} has all its pairs and stays as it is")
        if json:
            print_json({**facts, "run": run})
        return
    history = recommender.history
    signal = None if history is None else history.signal
    if signal is not None and (Path(target) / MANIFEST).exists():
        facts["run"] = target = f"{target}-interrupted"  # half an update replaces no whole run
    done = {"events": events, "epochs": 0 if history is None else len(history.epochs), **facts}
    past = before.get("updates")
    updates = [*(past if isinstance(past, list) else []), done]
    # The figures of the run's test are not carried over: they are another model's.
    recommender.save(target, data=before.get("data"), updates=updates)
    if signal is not None:
        log.info(f"interrupted: what was learnt by then is saved in {target}")
    if history is not None:
        facts |= {"epochs": len(history.epochs), "seconds": round(history.seconds, 2)}
    if json:
        print_json(facts)
    else:
        show_table("Update", ["", "value"], list(facts.items()))
        log.info(f"next: {command_name()} recommend {quote(str(target))} --out recommendations.tsv")
    if signal is not None:
        raise SystemExit(128 + signal)


def _tell(epoch: Epoch) -> None:
    rate = epoch.examples / max(epoch.seconds, 1e-9)
    log.info(f"epoch {epoch.number:3d}  loss {cell(epoch.loss)}  {rate:,.0f} events/s")
