"""The end: the test part is read, once, and the winner is fitted on everything."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from llpauc.data.histories import join
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.recommend import Recommender
from llpauc.search.auto.contest import SAFETY, TEST_USERS, Contest, Entry, reserve
from llpauc.search.auto.plan import some_users
from llpauc.training import Diverged

METRICS = ("ndcg@20", "recall@20", "hit@20")
_OVER = 1.05  # of the budget: then the last fit is given up


@dataclass(frozen=True)
class Finalist:
    """A candidate fitted on train and valid, and measured on the test part."""

    entry: Entry
    recommender: Recommender
    result: Evaluation


@dataclass(frozen=True)
class Finish:
    """What is handed over.

    Args:
        winner: by validation.
        finalists: the winner first, then the baselines, then the best trained model where that is
            another and there was time.
        test: the split they were measured on: all that lies before the test, and the test.
        delivered: the model behind the lists.
        on_everything: whether it has learnt from all events; else from those before the test.
    """

    winner: Entry
    finalists: tuple[Finalist, ...]
    test: Split
    delivered: Recommender
    on_everything: bool

    @property
    def champion(self) -> Finalist:
        return self.finalists[0]


_TROUBLE = (Diverged, InputError, MemoryError)  # with more events than in the contest


class Late(Exception):
    """A fit that can be done without has no time left."""


def finish(contest: Contest) -> Finish:
    """Test the winner beside the baselines, then fit it on everything."""
    split, winner = contest.split, contest.best
    assert winner is not None
    assert split.valid is not None
    assert split.test is not None
    test = Split(
        join([split.train, split.valid]), None, some_users(split.test, TEST_USERS, contest.seed)
    )
    others = [entry for entry in contest.best_baselines if entry is not winner]
    trained = contest.best_trained
    if trained is not None and trained is not winner and _fits(contest, winner, trained):
        others.append(trained)
    finalists: list[Finalist] = []
    for entry in (winner, *others):
        contest.hear.status(f"testing {entry.candidate.name}")
        # The best trained model beside a baseline that has won can be done without.
        until = math.inf
        if entry is trained and entry is not winner:
            until = contest.budget.seconds - reserve(contest, winner)
        try:
            fitted = fit_on(entry, [split.train, split.valid], contest, until)
        except Late:
            continue
        except _TROUBLE as error:
            contest.left_out[entry.candidate.name] = f"it could not be fitted again: {error}"
            continue
        result = evaluate(fitted.scorer(), test, metrics=METRICS)
        finalists.append(Finalist(entry, fitted, result))
    if not finalists:
        raise InputError("no method could be fitted on train and valid together")
    if finalists[0].entry is not winner:  # the next best by validation takes its place
        finalists.sort(key=lambda finalist: -finalist.entry.value)
        contest.hear.line(f"{winner.candidate.name} could not be fitted again for the test")
        winner = finalists[0].entry
    contest.hear.line(
        f"{contest.budget.passed:6.0f} s  test read, once: {len(finalists)} methods on"
        f" {len(finalists[0].result.users):,} users"
    )
    contest.hear.status(f"fitting {winner.candidate.name} on everything")
    parts = [split.train, split.valid, split.test]
    try:
        delivered, whole = fit_on(winner, parts, contest, _OVER * contest.budget.seconds), True
    except (Late, *_TROUBLE):
        delivered, whole = _with_histories(finalists[0].recommender, join(parts)), False
    return Finish(winner, tuple(finalists), test, delivered, whole)


def _fits(contest: Contest, winner: Entry, trained: Entry) -> bool:
    """Whether the best trained model can be tested too; after a Ctrl-C nobody waits for it."""
    return not contest.stop and contest.budget.left >= reserve(contest, winner, trained) / SAFETY


def fit_on(
    entry: Entry, parts: list[Interactions], contest: Contest, until: float = math.inf
) -> Recommender:
    """The entry's settings on all events of `parts`, for as many epochs as validation chose.

    Raises:
        Late: where training is not done `until` then, in seconds of the budget, or was interrupted.
    """
    settings = dict(entry.candidate.settings)
    if entry.candidate.is_baseline:
        split = Split(join(parts[:-1]), parts[-1]) if len(parts) > 1 else Split(parts[0])
        return Recommender(**settings, refit=True).fit(split)
    settings |= {"epochs": entry.best_epoch, "hold_out": 0.0, "seed": contest.seed}

    def on_batch(done: int) -> None:
        if until < math.inf and contest.budget.passed > until:
            raise Late

    made = Recommender(**settings).fit(
        Split(join(parts)), on_batch=on_batch, on_epoch=lambda epoch: on_batch(0)
    )
    if made.history is not None and made.history.signal is not None:
        contest.stop.signal = made.history.signal
        raise Late
    return made


def _with_histories(recommender: Recommender, seen: Interactions) -> Recommender:
    """Nobody is recommended what they have, even where the model has not learnt from it."""
    recommender.fitted = dataclasses.replace(recommender.require_fitted(), histories=seen.matrix)
    return recommender
