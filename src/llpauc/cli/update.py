"""`llpauc update`: add new events to a saved run."""

from __future__ import annotations

from llpauc.cli.console import facts_table, log, print_json, print_result
from llpauc.cli.data_options import Events, Seed, TableOptions
from llpauc.cli.system import check_folder, check_free_space
from llpauc.cli.train import (
    exit_if_interrupted,
    incomplete_folder,
    log_next_command,
    training_progress,
)
from llpauc.options import NonNegative, NonNegativeInt, Positive


def update(
    run: str,
    events: Events,
    *,
    out: str | None = None,
    items: str | None = None,
    epochs: NonNegativeInt = 5,
    lr: Positive | None = None,
    weight_decay: NonNegative | None = None,
    seed: Seed | None = None,
    device: str | None = None,
    table: TableOptions,
    json: bool = False,
) -> None:
    """Continue a saved run with new events of known and new users and items.

    Known users and items keep their vectors, new ones get vectors from the items and users that
    they interact with. Then the model is trained on all events, those of the run and the new ones;
    the state of Adam is not kept. Models without training are fitted again on all events. Nothing
    is measured: hold out test events, and use llpauc evaluate. Ctrl-C stops after the current
    batch and saves the model in a folder of its own.

    Args:
        run: a run folder written by llpauc train
        events: a file of interactions, or a folder with train and valid files
        out: the new run folder; by default RUN is replaced
        items: a new catalogue, which may have further items; by default that of the run
        epochs: passes over all events; 0 gives vectors to new users and items and trains nothing
        lr: learning rate; by default that of the run
        weight_decay: weight decay; by default that of the run
        seed: of the order of events and the negatives; by default that of the run
        device: cpu, or a torch device such as cuda; by default that of the run
        json: print the result as JSON
    """
    from llpauc.data.interactions import before
    from llpauc.data.known_ids import check_known, ids_with_events
    from llpauc.recommend import Recommender
    from llpauc.storage import run_folder
    from llpauc.storage.atomic import writer_lock

    target = run if out is None else out
    check_folder(target)
    run_folder.check_replaceable(target)
    # From the first read to the save: an update in between would be lost
    with writer_lock(target):
        saved = run_folder.load(run)
        check_free_space(target, sum(array.nbytes for array in saved.tensors.values()))
        recommender = Recommender.from_run(saved, run)
        table = table.or_else(saved.meta.get("reading"))
        split = table.load_split(events, min_ids=1)
        fitted = recommender.require_fitted()
        known = {"user": fitted.user_ids.text, "item": fitted.item_ids.text}
        for text in check_known(ids_with_events(split.train), known, events, run):
            log.info(text)
        pairs = fitted.histories.nnz + sum(map(len, before(split, "test")))
        with training_progress("updating", epochs, epochs * pairs) as (on_batch, on_epoch):
            added = recommender.update(
                split,
                items=items,
                epochs=epochs,
                lr=lr,
                weight_decay=weight_decay,
                seed=seed,
                device=device,
                on_batch=on_batch,
                on_epoch=on_epoch,
            )
        facts = {
            "run": target,
            "new pairs": len(added.new),
            "new users": len(added.new_users),
            "new items": len(added.new_items),
            "known pairs": len(added.old),
        }
        if not len(added.new) and items is None:
            log.info(f"nothing new in {events}: {run} has all its pairs and is not changed")
            if out is None:
                if json:
                    print_json(facts)
                return
        history = recommender.history
        interrupted = history is not None and history.signal is not None
        if interrupted:
            facts["run"] = target = incomplete_folder(target, "interrupted")
        # The test metrics of the run are those of another model, and are not copied
        epochs = 0 if history is None else len(history.epochs)
        entry = {"events": events, "epochs": epochs, **facts, **table.record(split)}
        earlier = saved.meta.get("updates")
        updates = [*(earlier if isinstance(earlier, list) else []), entry]
        kept = {name: saved.meta.get(name) for name in ("data", "reading", "digests")}
        recommender.save(target, **kept, updates=updates)
    if interrupted:
        log.info(f"interrupted: the model of the last batch is saved in {target}")
    if history is not None:
        facts |= {"epochs": len(history.epochs), "seconds": round(history.seconds, 2)}
    print_result(facts, json, facts_table("Update", facts))
    if not json:
        log_next_command(target)
    exit_if_interrupted(history)
