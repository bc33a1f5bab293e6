"""`llpauc auto`: from events to the best recommendations that fit a time budget.

Baselines first, then trained candidates, all compared on validation; the test part is read once, at
the end, and the winner is fitted on all events.

Nothing is started that is not expected to end in time. At every batch the time left is compared
with the time that the end needs: the fits of the winner for the test and for delivery, the lists of
all users, the report. An epoch counts only if those fits can still be paid for. The other methods
are tested too as long as that takes a small fraction of the budget.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from llpauc.data.inspection import Inspection, inspect
from llpauc.data.interactions import Interactions, Split, before, join
from llpauc.data.recency import Recency, choose_recency
from llpauc.data.splits import hold_out, sample_users
from llpauc.errors import InputError, listing
from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.models.registry import MODELS, blend_text, untrained_models
from llpauc.options import LogRange, options_of
from llpauc.recommend import Recommender
from llpauc.search.candidates import (
    METRIC,
    Candidate,
    Prepared,
    baselines,
    method_name,
    prepare,
    scout,
    sized_recipes,
    variants,
    work,
)
from llpauc.search.comparison import Comparison, compare
from llpauc.search.space import Space, suggest
from llpauc.search.trials import Budget, Progress, TrialResult, no_progress, run_trial
from llpauc.training import Diverged, Epoch
from llpauc.training.interrupt import StopRequest, stop_requests
from llpauc.training.loop import available_memory

logger = logging.getLogger(__name__)

METRICS = ("ndcg@20", "recall@20", "hit@20")
VALID_USERS, TEST_USERS = 20_000, 50_000  # more cost time and change the metrics little
_SAFETY = 1.25  # factor on the estimated seconds of the end
_TURN = 0.5  # fraction of the remaining time that one candidate may take
_WRITING = 1.0  # seconds for the run and the report
_ROWS_PER_SECOND = 2e6  # of recommendations written
_COMPARISON = 0.15  # of the budget at most for the test of the methods that are not delivered
_BASELINE_FRACTION = 0.2  # of the time left; a baseline that needs more is skipped
_SETTING_FRACTION = 0.05  # of the time left; up to it a baseline is tried with further options
_LEAST_EPOCHS = 5  # a candidate with time for fewer is not started
_FULL_EPOCHS = 15  # a recipe's size is affordable with time for that many
_BEHIND = 0.85  # of the leader's value; what is further behind is not continued
_BLENDED = 0.5  # of the best baseline's value; baselines below it are left out of the blend
_MOST_FAILURES = 25  # trials in a row without a better value end the search
_OVERTIME = 1.05  # of the budget; then the last fit is given up
_GRACE = 5.0  # seconds after the budget that the end may take in any case
_FIT_ERRORS = (Diverged, InputError, MemoryError)  # possible with more events than in the search


@dataclass(frozen=True, kw_only=True)
class Trial(TrialResult):
    """A candidate and its result; it may also have ended as "fitted", "out of time" or "behind".

    Args:
        candidate: its settings include what the fit has chosen (a half-life).
        fit_seconds: estimate for another fit on as many events.
        rank_seconds: to rank all items for one user.
    """

    candidate: Candidate
    fit_seconds: float = 0.0
    rank_seconds: float = 0.0


def _best(*trials: Trial | None) -> Trial | None:
    """The first trial with the highest value; None where none has a value."""
    validated = [trial for trial in trials if trial is not None and trial.value is not None]
    return max(validated, key=_sort_value, default=None)


def _sort_value(trial: Trial | None) -> float:
    return -math.inf if trial is None else trial.sort_value


@dataclass
class Search:
    """The state of a search.

    Args:
        split: train, valid and test; only the size of the test part is used.
        budget: time limit of everything.
        k: length of the lists to be written.
        seed: of every training.
        stop: a request to stop.
        progress: see `llpauc.search.trials`.
        recency: whether recent events predict more; None before that is known.
        trials: in the order they ran.
        skipped: candidate name -> why it was not tried.
    """

    split: Split
    budget: Budget
    k: int = 20
    seed: int = 0
    stop: StopRequest = field(default_factory=StopRequest)
    progress: Progress = no_progress
    recency: Recency | None = None
    trials: list[Trial] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.split.valid is not None
        assert self.split.test is not None
        valid = sample_users(self.split.valid, VALID_USERS, self.seed)
        self.validation = Split(self.split.train, valid)
        self.n_valid_users = len(np.unique(valid.users))
        self.n_test_users = min(len(np.unique(self.split.test.users)), TEST_USERS)
        sizes = [len(part) for part in self.split.parts.values()]
        # Events in the fit for the test, and in the fit for delivery, relative to train.
        self.growth = sum(sizes[:2]) / sizes[0], sum(sizes) / sizes[0]

    @property
    def best(self) -> Trial | None:
        return _best(*self.trials)

    @property
    def best_trained(self) -> Trial | None:
        return _best(*[t for t in self.trials if not t.candidate.is_baseline])

    @property
    def winner(self) -> Trial | None:
        """The best trial whose test fits into the time left; without one, the best trial."""
        left = max(self.budget.left, _GRACE)
        in_time = [trial for trial in self.trials if self.test_seconds(trial) <= left]
        return _best(*in_time) or self.best

    @property
    def best_baselines(self) -> list[Trial]:
        """The best trial of each baseline model, in the order they ran."""
        best: dict[str, Trial | None] = {}
        for trial in self.trials:
            if trial.candidate.is_baseline:
                best[trial.candidate.model] = _best(best.get(trial.candidate.model), trial)
        return [trial for trial in best.values() if trial is not None]

    @property
    def blendable(self) -> list[Trial]:
        """The baselines that are added to the best trained model."""
        trials = [t for t in self.best_baselines if MODELS[t.candidate.model].blendable]
        least = _BLENDED * _sort_value(_best(*trials))
        return [trial for trial in trials if trial.sort_value >= least]

    def with_blend(self, trial: Trial) -> Trial:
        """The trial with the estimated times of its blend with the best baselines."""
        models = [trial, *self.blendable]
        return replace(
            trial,
            fit_seconds=sum(t.fit_seconds for t in models),
            rank_seconds=sum(t.rank_seconds for t in models),
        )

    def blend_seconds(self, trial: Trial) -> float:
        """Estimate for a fit of the blend and the choice of its weights."""
        blend = self.with_blend(trial)
        return blend.fit_seconds + 3 * blend.rank_seconds * self.n_valid_users

    def show(self, status: str) -> None:
        self.progress(status, min(self.budget.passed / self.budget.seconds, 1.0))

    def report(self, trial: Trial) -> Trial:
        """Record a trial and log it."""
        self.trials.append(trial)
        epochs = f", epoch {trial.epochs_text}" if trial.curve else ""
        message = f": {trial.message}" if trial.message else ""
        mark = " *" if trial is self.best else ""
        logger.info(
            "%s",
            f"{self.budget.passed:6.0f} s  {trial.value_text:>6}  {trial.candidate.name}"
            f"  ({trial.ended}{epochs}, {trial.seconds:.1f} s{message}){mark}",
        )
        return trial

    def skip(self, name: str, reason: str) -> None:
        """Record why a candidate is not tried, and log it."""
        self.skipped[name] = reason
        logger.info("%s", f"{self.budget.passed:6.0f} s  {'-':>6}  {name}  ({reason})")

    def test_seconds(self, trial: Trial) -> float:
        """Estimate for a fit on train and valid, and the test."""
        return trial.fit_seconds * self.growth[0] + trial.rank_seconds * self.n_test_users

    def delivery_seconds(self, trial: Trial) -> float:
        """Estimate for a fit on all events, the lists of all users and the report."""
        writing = _WRITING + self.split.n_users * self.k / _ROWS_PER_SECOND
        fit = trial.fit_seconds * self.growth[1]
        return fit + trial.rank_seconds * self.split.n_users + writing

    def end_seconds(self, winner: Trial) -> float:
        """Seconds to test and to deliver a trial, with a margin."""
        return _SAFETY * (self.test_seconds(winner) + self.delivery_seconds(winner))

    def reserve(self, winner: Trial | None) -> float:
        """Seconds that the end takes if `winner` wins, with the tests of the other methods."""
        rivals = [trial for trial in [*self.best_baselines, self.best_trained] if trial]
        compared = sum(self.test_seconds(trial) for trial in rivals if trial is not winner)
        seconds = min(_SAFETY * compared, _COMPARISON * self.budget.seconds)
        if winner is None:
            return seconds
        leader = self.best_trained if winner.candidate.is_baseline else winner
        if leader is None or "blend" in leader.candidate.settings:
            return seconds + self.end_seconds(winner)
        return seconds + self.blend_seconds(leader) + self.end_seconds(self.with_blend(leader))

    @property
    def spare(self) -> float:
        """Seconds left for further trials."""
        return self.budget.left - self.reserve(self.best)

    def affordable(self, candidate: Candidate, epochs: int) -> bool:
        """Whether there is time for that many epochs, for the test and for delivery."""
        train = self.split.train
        paces = [
            trial.fit_seconds / trial.best_epoch / work(trial.candidate.settings, train)
            for trial in self.trials
            if trial.best_epoch
        ]
        if not paces:
            return False
        seconds = float(np.median(paces)) * work(candidate.settings, train) * epochs
        if seconds > _TURN * self.spare:
            return False
        fits = 1 + _SAFETY * sum(self.growth)
        return seconds * fits <= self.budget.left - self.reserve(None)


# --- baselines ------------------------------------------------------------------------------------


def run_baselines(search: Search) -> None:
    """Popularity always; the other models without training where time and memory allow."""
    for model in untrained_models():
        if search.stop:
            return
        if search.recency is None and search.trials:
            search.recency = choose_recency(before(search.split, "test"))
        first, *others = baselines(model)
        if search.trials and (reason := _refusal(search, model)):
            search.skip(first.name, reason)
            continue
        trial = _run_baseline(search, first)
        for candidate in others:
            is_far_behind = trial.sort_value < _BEHIND * _sort_value(search.best)
            is_slow = trial.seconds > _SETTING_FRACTION * search.budget.left
            if is_far_behind or is_slow or search.stop:
                break
            _run_baseline(search, candidate)


def _refusal(search: Search, model: str) -> str:
    """Why a baseline is not fitted, or ""."""
    seconds, size = MODELS[model].load().fit_cost(search.split.train)
    left, memory = max(search.budget.left, 0.0), available_memory()
    if seconds > _BASELINE_FRACTION * left:
        return f"it would take about {seconds:.1f} s of the {left:.1f} s left"
    if memory is not None and size > memory:
        return f"it needs {size / 1e9:.1f} GB for {search.split.n_items:,} items"
    return ""


def _run_baseline(search: Search, candidate: Candidate) -> Trial:
    search.show(candidate.name)
    clock = search.budget.clock
    begun = clock()
    try:
        recommender = Recommender(**candidate.settings, recipe="none").fit(search.validation)
        fitted = clock()
        result = evaluate(recommender.scorer(), search.validation, on="valid", metrics=[METRIC])
    except (InputError, MemoryError) as error:
        seconds = clock() - begun
        trial = Trial("refused", seconds=seconds, message=str(error), candidate=candidate)
        return search.report(trial)
    ended = clock()
    fitted_params = recommender.fitted_params
    options = options_of(MODELS[candidate.model].Options)
    chosen = {k: v for k, v in fitted_params.items() if k in options and v is not None}
    message, description = "", candidate.description
    if "half_life" in chosen and search.recency is not None:
        message = str(search.recency)
        if not search.recency.has_drift:
            description = "recent events predict no more than others: the same as popularity"
    settings = {**candidate.settings, **chosen}
    fits = 1 + MODELS[candidate.model].load().choosing_fits  # the next fit has chosen options
    trial = Trial(
        "fitted", result.mean(METRIC), seconds=ended - begun, message=message,
        candidate=replace(candidate, settings=settings, description=description),
        fit_seconds=(fitted - begun) / fits, rank_seconds=(ended - fitted) / search.n_valid_users,
    )  # fmt: skip
    return search.report(trial)


# --- trained candidates ---------------------------------------------------------------------------


def warm_up(train: Interactions) -> None:
    """Train each candidate for these events on a few others, so that its kernels are compiled."""
    users = np.arange(40, dtype=np.int32)
    events = Interactions.of(np.repeat(users, 4), (users[:, None] + np.arange(4)).ravel() % 30)
    split = hold_out(Split(events), 0.25, seed=0)
    short = {"epochs": 1, "dimensions": 8, "negatives": 20, "valid_metric": METRIC}
    for base in sized_recipes(train).values():
        for candidate in variants(base, train, None):
            Recommender(**{**candidate.settings, **short}, recipe="none").fit(split)


def run_candidate(search: Search, candidate: Candidate) -> Trial | None:
    """Train a candidate if there is time for it; None if not."""
    if not search.affordable(candidate, _LEAST_EPOCHS):
        search.skip(candidate.name, "there was not enough time")
        return None
    return train_candidate(search, candidate)


def train_candidate(search: Search, candidate: Candidate) -> Trial:
    """Train until the end or as long as there is time; the best epoch that can be paid for."""
    clock, budget = search.budget.clock, search.budget
    begun = last = clock()
    leader, needed = search.best_trained, search.reserve(search.best)
    if leader is None:  # the first one gets its turn, however long the baselines took
        needed = min(needed, _TURN * budget.left)
    turn_ends = begun + _TURN * max(budget.left - needed, 0.0)
    epoch_seconds: list[float] = []
    best, highest = Trial("out of time", candidate=candidate), -math.inf

    def on_batch() -> str:
        if search.stop:
            return "interrupted"
        return "out of time" if budget.left <= needed or clock() >= turn_ends else ""

    def on_validation(epoch: Epoch, value: float) -> str:
        nonlocal last, best, needed, highest
        now = clock()
        epoch_seconds.append(now - last)
        ranking, last = max(epoch_seconds[-1] - epoch.seconds, 0.0), now
        # The first epoch may have compiled kernels.
        pace = float(np.median(epoch_seconds[1:] or epoch_seconds))
        trial = replace(
            best, value=value, best_epoch=epoch.number, fit_seconds=pace * epoch.number,
            rank_seconds=ranking / search.n_valid_users,
        )  # fmt: skip
        in_time = search.end_seconds(trial) <= budget.left
        if value > best.sort_value and in_time:
            best = trial
            if value > _sort_value(search.best):
                needed = max(needed, search.reserve(trial))
        highest = max(highest, value)
        search.show(f"{candidate.name}: epoch {epoch.number}, validation {METRIC} {value:.4f}")
        if not in_time and not search.stop:
            return "out of time"
        if leader is not None and epoch.number >= _LEAST_EPOCHS and not on_batch():
            behind = highest < _BEHIND * max(leader.curve[: epoch.number])
            return "behind" if behind else ""
        return on_batch()

    search.show(candidate.name)
    settings = {**candidate.settings, "seed": search.seed, "valid_metric": METRIC}
    result = run_trial(
        settings, search.validation, on_batch=on_batch, on_validation=on_validation, clock=clock
    )
    if result.signal is not None:
        search.stop.signal = result.signal
    chosen = {"value": best.value, "best_epoch": best.best_epoch}
    return search.report(replace(best, **{**vars(result), **chosen}))


def affordable_variants(search: Search, tried: Candidate) -> Iterator[Candidate]:
    """The variants of the largest recipe there is time for, which is determined before each."""
    done: set[str] = set()
    *larger, smallest = sized_recipes(search.split.train).values()
    while True:
        for base in (*larger, smallest):
            candidates = variants(base, search.split.train, search.recency)
            if search.affordable(candidates[0], _FULL_EPOCHS):
                break
        left = [c for c in candidates if c.id not in done and c.settings != tried.settings]
        if not left:
            return
        done.add(left[0].id)
        yield left[0]


def space_around(settings: Mapping[str, Any]) -> Space:
    """The space that is searched around the best trained candidate."""
    dimensions, lr = settings["dimensions"], settings["lr"]
    space: Space = {
        "model": (settings["model"],), "loss": (settings["loss"],),
        "lr": LogRange(lr / 3, lr * 3), "weight_decay": (0.0, 1e-6, 1e-5, 1e-4),
        "dimensions": (dimensions // 2, dimensions),
    }  # fmt: skip
    if "temperature" in settings:
        space["temperature"] = LogRange(0.08, 0.5)
    if "alpha" in settings:
        beta = settings["beta"]
        space |= {"alpha": LogRange(0.4, 1.0), "beta": LogRange(beta / 5, min(3 * beta, 1.0))}
    if "layers" in settings:
        space["layers"] = (1, 2, 3)
    if "half_life" in settings:
        age = settings["half_life"]
        space["half_life"] = LogRange(age / 4, age * 4)
    return space


def search_around_best(search: Search) -> None:
    """Optuna trials around the best trained candidate, while there is time and progress."""
    leader = search.best_trained
    if leader is None or search.spare <= 0:
        return
    if find_spec("optuna") is None:
        search.skip("search", "Optuna is not installed; pip install 'llpauc[tune]'")
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=5)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    start, failures, number = leader.candidate, 0, 0
    space = space_around(start.settings)
    while not search.stop and failures < _MOST_FAILURES:
        drawn = study.ask()
        number += 1
        settings = {**start.settings, **suggest(drawn, space)}
        candidate = Candidate(
            f"search-{number}", method_name(settings, f"search {number}"), settings,
            f"drawn by Optuna, around {start.name}",
        )  # fmt: skip
        best_before = search.best_trained
        trial = run_candidate(search, candidate)
        if trial is None:
            return
        if trial.value is None:
            study.tell(drawn, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(drawn, trial.value)
        failures = 0 if search.best_trained is not best_before else failures + 1


def run_blend(search: Search) -> None:
    """Train the best trained candidate again, and add the best baselines to it where that helps."""
    leader, others = search.best_trained, search.blendable
    if leader is None or not others or "blend" in leader.candidate.settings:
        return
    clock, begun = search.budget.clock, search.budget.clock()
    options = [{**t.candidate.settings} for t in others]
    blended = blend_text({str(settings.pop("model")): settings for settings in options})
    name = f"{leader.candidate.name}, with {listing(o.candidate.title for o in others)}"
    end = _SAFETY * search.blend_seconds(leader) + search.end_seconds(search.with_blend(leader))
    if end > search.budget.left:
        search.skip(name, "there was not enough time")
        return

    def check_time(_: int) -> None:
        if search.budget.left < search.end_seconds(search.best or leader):
            raise _OutOfTime("there was not enough time")

    search.show(name)
    settings = {**leader.candidate.settings, "blend": blended}
    trained = {"epochs": leader.best_epoch, "seed": search.seed, "valid_metric": METRIC}
    try:
        recommender = Recommender(**{**settings, **trained}, recipe="none")
        recommender.fit(search.validation, on_batch=check_time)
        fitted = clock()
        result = evaluate(recommender.scorer(), search.validation, on="valid", metrics=[METRIC])
    except (_OutOfTime, *_FIT_ERRORS) as error:
        search.skip(name, str(error))
        return
    history, chosen = recommender.history, recommender.fitted_params["blend"]
    if history is not None and history.signal is not None:
        search.stop.signal = history.signal
        return
    if chosen is None:
        search.skip(name, "the trained model alone is at least as good")
        return
    candidate = Candidate(
        "blend", name, {**settings, "blend": chosen},
        f"scores added: {recommender.require_fitted().model.description}",
    )  # fmt: skip
    assert history is not None
    search.report(
        Trial(
            "fitted", result.mean(METRIC), history.best_epoch, seconds=clock() - begun,
            candidate=candidate, fit_seconds=fitted - begun,
            rank_seconds=(clock() - fitted) / search.n_valid_users,
        )
    )  # fmt: skip


def run_search(search: Search) -> None:
    """Baselines, the scout, the variants of the recipe, a search around the best of them, then a
    blend of the best with the baselines."""
    run_baselines(search)
    first = scout(search.split.train)
    if search.stop or search.budget.left <= 0:
        search.skip(first.name, "there was no time for a trained model")
        return
    train_candidate(search, first)
    for candidate in affordable_variants(search, first):
        if search.stop:
            return
        run_candidate(search, candidate)
    if not search.stop:
        search_around_best(search)
    if not search.stop:
        run_blend(search)


# --- the end --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Final:
    """The test, and the model to deliver.

    Args:
        search: the trials.
        finalists: the winner first, then the baselines, then the best trained model where that is
            another one and there was time.
        evaluations: candidate name -> metrics on the test part, after a fit on train and valid.
        comparison: of these metrics.
        recommender: the model to deliver.
        on_all_events: whether it was fitted on all events, or only on those before the test.
    """

    search: Search
    finalists: tuple[Trial, ...]
    evaluations: dict[str, Evaluation]
    comparison: Comparison
    recommender: Recommender
    on_all_events: bool

    @property
    def winner(self) -> Trial:
        return self.finalists[0]


class _OutOfTime(Exception):
    """There is no time left for an optional fit."""


def test_and_refit(search: Search) -> Final:
    """Test the winner next to the baselines, then fit it on all events."""
    split, budget, winner = search.split, search.budget, search.winner
    assert winner is not None
    assert split.valid is not None
    assert split.test is not None
    known = join([split.train, split.valid])
    test = Split(known, None, sample_users(split.test, TEST_USERS, search.seed))
    rivals = [*search.best_baselines, None if search.stop else search.best_trained]
    compared = sorted({t.candidate.name: t for t in rivals if t}.values(), key=_sort_value)

    # Test the winner, and the others as long as there is time.
    tested: list[tuple[Trial, Recommender, Evaluation]] = []
    for trial in [winner, *(t for t in reversed(compared) if t is not winner)]:
        search.show(f"testing {trial.candidate.name}")
        until = budget.seconds - _SAFETY * search.delivery_seconds(winner)
        try:
            if tested and budget.passed + search.test_seconds(trial) > max(until, _GRACE):
                raise _OutOfTime("there was no time to test it")
            limit = until if tested else math.inf
            recommender = fit_again(trial, [split.train, split.valid], search, limit)
        except (_OutOfTime, *_FIT_ERRORS) as error:
            search.skip(trial.candidate.name, f"not tested: {error}")
            continue
        evaluation = evaluate(recommender.scorer(), test, metrics=METRICS)
        tested.append((trial, recommender, evaluation))
    if not tested:
        raise InputError("no method could be fitted on train and valid together")
    winner, delivered, evaluation = tested[0]
    logger.info(
        "%s",
        f"{budget.passed:6.0f} s  test part read once: {len(tested)} methods on"
        f" {len(evaluation.users):,} users",
    )

    # Fit the winner on all events; without time, deliver the tested model.
    search.show(f"fitting {winner.candidate.name} on all events")
    parts = [split.train, split.valid, split.test]
    on_all_events = True
    try:
        delivered = fit_again(winner, parts, search, _OVERTIME * budget.seconds + _GRACE)
    except (_OutOfTime, *_FIT_ERRORS):
        on_all_events = False
        # Items of the test part are not recommended to users who have them.
        fitted = delivered.require_fitted()
        seen = join(parts)
        delivered.fitted = replace(fitted, histories=seen.histories, types=seen.pair_types)
    evaluations = {trial.candidate.name: evaluation for trial, _, evaluation in tested}
    comparison = compare(evaluations, test, METRICS, search.seed)
    finalists = tuple(trial for trial, _, _ in tested)
    return Final(search, finalists, evaluations, comparison, delivered, on_all_events)


def fit_again(
    trial: Trial, parts: list[Interactions], search: Search, until: float = math.inf
) -> Recommender:
    """The trial's settings on all events of `parts`, for as many epochs as validation chose.

    Raises:
        _OutOfTime: where training is interrupted or not done after `until` seconds of the budget.
    """

    def check_time(seconds: float = 0.0) -> None:
        if search.budget.passed + seconds > until:
            raise _OutOfTime("there was no time left")

    settings = _refit_settings(trial, search.seed)
    if trial.candidate.is_baseline:
        check_time(trial.fit_seconds * sum(map(len, parts)) / len(search.split.train))
        return Recommender(**settings, recipe="none", refit=True).fit(
            Split(join(parts[:-1]), parts[-1])
        )
    recommender = Recommender(**settings, recipe="none").fit(
        Split(join(parts)), on_batch=lambda _: check_time(), on_epoch=lambda _: check_time()
    )
    if recommender.history is not None and recommender.history.signal is not None:
        search.stop.signal = recommender.history.signal
        raise _OutOfTime("interrupted")
    return recommender


@dataclass(frozen=True)
class AutoResult:
    """The result of `auto`.

    Args:
        inspection: of the data.
        prepared: the split.
        recommender: the model to deliver.
        final: the search and the test; None where there are too few events to hold any out.
    """

    inspection: Inspection
    prepared: Prepared
    recommender: Recommender
    final: Final | None = None

    @property
    def signal(self) -> int | None:
        """Number of the signal that ended the search early."""
        return None if self.final is None else self.final.search.stop.signal

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters of `Recommender` that fit the winner again."""
        if self.final is None:
            return {"model": self.recommender.model}
        return _refit_settings(self.final.winner, self.final.search.seed)


def _refit_settings(trial: Trial, seed: int) -> dict[str, Any]:
    settings = dict(trial.candidate.settings)
    if not trial.candidate.is_baseline:
        settings |= {"epochs": trial.best_epoch, "hold_out": 0.0, "seed": seed}
    return settings


def auto(
    data: Interactions | Split, budget: Budget, *, k: int = 20, seed: int = 0, how: str = "auto",
    progress: Progress = no_progress,
) -> AutoResult:  # fmt: skip
    """Inspect, split, search, test, and fit on all events.

    Args:
        data: a table, or parts that are used as they are.
        budget: time for everything, writing the results included.
        k: length of the lists to be written.
        seed: of the split, of every training and of the bootstrap.
        how: to split a table; see `llpauc.search.candidates.prepare`.
        progress: see `llpauc.search.trials`.
    """
    progress("inspecting the data", 0.0)
    inspection, prepared = inspect(data), prepare(data, seed, how)
    logger.info("%s", prepared.how)
    if not prepared.is_measurable:
        everything = join(list(prepared.split.parts.values()))
        recommender = Recommender(model="popularity").fit(Split(everything))
        return AutoResult(inspection, prepared, recommender)
    with stop_requests() as stop:
        search = Search(prepared.split, budget, k, seed, stop, progress)
        run_search(search)
    if stop:
        logger.info("interrupted: finishing with the best so far; Ctrl-C again cancels")
    final = test_and_refit(search)
    return AutoResult(inspection, prepared, final.recommender, final)
