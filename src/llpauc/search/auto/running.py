"""From events to a model: look, split, contest, test, the last fit."""

from __future__ import annotations

from dataclasses import dataclass

from llpauc.data.histories import join
from llpauc.data.inspection import Inspection, inspect
from llpauc.data.interactions import Interactions, Split
from llpauc.recommend import Recommender
from llpauc.search.auto.baselines import run_baselines
from llpauc.search.auto.contest import Contest, Listener, spare
from llpauc.search.auto.finish import METRICS, Finish, finish
from llpauc.search.auto.measures import Measures, measure
from llpauc.search.auto.plan import Budget, Prepared, baseline, prepare, scout
from llpauc.search.auto.search import search
from llpauc.search.auto.trained import affordable_variants, begin, train_candidate
from llpauc.training.interrupt import stop_requests


@dataclass(frozen=True)
class Outcome:
    """All that came of it; contest, finish and measures are None where nothing could be held out.

    Args:
        looked: the look at the data.
        prepared: the split.
        contest: who ran, and how they did.
        finish: the winner beside its rivals on the test part, and the model to deliver.
        measures: the figures of that.
        delivered: the model to deliver.
        signal: of a Ctrl-C that ended the contest early, or None.
    """

    looked: Inspection
    prepared: Prepared
    contest: Contest | None
    finish: Finish | None
    measures: Measures | None
    delivered: Recommender
    signal: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        """Parameters of `Recommender` that fit the winner once more."""
        if self.finish is None or self.contest is None:
            return dict(baseline("popularity").settings)
        winner = self.finish.winner
        settings = dict(winner.candidate.settings)
        if not winner.candidate.is_baseline:
            settings |= {
                "epochs": winner.best_epoch, "hold_out": 0.0, "seed": self.contest.seed
            }  # fmt: skip
        return settings


def run(
    data: Interactions | Split, budget: Budget, *, k: int = 20, seed: int = 0, how: str = "auto",
    hear: Listener | None = None,
) -> Outcome:  # fmt: skip
    """Inspect, split, hold the contest, test, fit on everything.

    Args:
        data: a table, or parts that are taken as they are.
        budget: when it began and how long it may take; writing the results included.
        k: length of the lists to come.
        seed: of the split, of every training and of the bootstrap.
        how: to split a table; see `plan.WAYS`.
        hear: who is told.
    """
    hear = hear or Listener()
    hear.status("looking at the data")
    looked = inspect(data)
    prepared = prepare(data, seed, how)
    hear.line(prepared.how)
    if not prepared.measurable:
        everything = Split(_all_events(prepared.split))
        delivered = Recommender(model="popularity").fit(everything)
        return Outcome(looked, prepared, None, None, None, delivered)
    with stop_requests() as stop:
        contest = Contest(prepared.split, budget, k, seed, stop, hear)
        hold(contest)
    if stop:
        hear.line("stopping here: finishing with the best so far; Ctrl-C again breaks off")
    done = finish(contest)
    results = {finalist.entry.candidate.name: finalist.result for finalist in done.finalists}
    measures = measure(results, done.test, METRICS, seed)
    return Outcome(looked, prepared, contest, done, measures, done.delivered, stop.signal)


def _all_events(split: Split) -> Interactions:
    return join(list(split.parts.values()))


def hold(contest: Contest) -> None:
    """Run all of it: baselines, the scout, the recipe's variants, then a search."""
    run_baselines(contest)
    first = scout(contest.split.train)
    if contest.stop or spare(contest) <= 0:
        contest.left_out[first.name] = "no time for a trained model"
        return
    contest.add(train_candidate(contest, first))
    for candidate in affordable_variants(contest, first):
        if contest.stop:
            return
        begin(contest, candidate)
    if not contest.stop:
        search(contest)
