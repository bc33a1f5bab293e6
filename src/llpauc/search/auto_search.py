"""`llpauc auto`: from events to the best recommendations that fit a time budget.

Baselines first, then trained candidates, all compared on validation; the test part is read once, at
the end, and the winner is fitted on all events.

Nothing is started that cannot end in time. At every batch the time left is compared with the time
that the end needs: the fits of the winner for the test and for delivery, those of the baselines,
the lists of all users, the report. An epoch counts only if those fits can still be paid for.
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
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.models.registry import MODELS, untrained_models
from llpauc.options import LogRange, options_of
from llpauc.recommend import Recommender
from llpauc.search.candidates import (
    METRIC,
    Candidate,
    Prepared,
    baseline,
    further_baselines,
    prepare,
    sample_users,
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
_CHEAP = 0.02  # fraction of the budget below which a baseline is tried with further options
_BASELINE_FRACTION = 0.2  # of the time left; a baseline that needs more is skipped
_LEAST_EPOCHS = 5  # a candidate with time for fewer is not started
_FULL_EPOCHS = 15  # a recipe's size is affordable with time for that many
_BEHIND = 0.85  # of the leader's best value by the same epoch; from `_LEAST_EPOCHS` on
_MOST_FAILURES = 25  # trials in a row without a better value end the search
_OVERTIME = 1.05  # of the budget; then the last fit is given up
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
    return max(validated, key=lambda trial: trial.sort_value, default=None)


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
    def best_baselines(self) -> list[Trial]:
        """The best trial of each baseline model, in the order they ran."""
        best: dict[str, Trial | None] = {}
        for trial in self.trials:
            if trial.candidate.is_baseline:
                best[trial.candidate.model] = _best(best.get(trial.candidate.model), trial)
        return [trial for trial in best.values() if trial is not None]

    def show(self, status: str) -> None:
        self.progress(status, min(self.budget.passed / self.budget.seconds, 1.0))

    def report(self, trial: Trial) -> None:
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

    def skip(self, name: str, reason: str) -> None:
        """Record why a candidate is not tried, and log it."""
        self.skipped[name] = reason
        logger.info("%s", f"{self.budget.passed:6.0f} s  {'-':>6}  {name}  ({reason})")

    def reserve(self, winner: Trial | None, trained: Trial | None = None) -> float:
        """Seconds that the end takes if `winner` wins and `trained` is tested too."""
        for_test, for_delivery = self.growth
        seconds = _WRITING + self.split.n_users * self.k / _ROWS_PER_SECOND
        for trial in filter(None, [*self.best_baselines, trained]):
            seconds += trial.fit_seconds * for_test + trial.rank_seconds * self.n_test_users
        if winner is not None:
            seconds += winner.fit_seconds * for_delivery
            seconds += winner.rank_seconds * self.split.n_users
        return _SAFETY * seconds

    @property
    def spare(self) -> float:
        """Seconds left for further trials."""
        return self.budget.left - self.reserve(self.best, self.best_trained)

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
    """Popularity always; the other baselines where time and memory allow."""
    search.show("baselines")
    tiny = Split.of(
        Interactions.of(["a", "b"], ["x", "y"]), Interactions.of(["a", "b"], ["y", "x"])
    )
    popularity = Recommender(model="popularity").fit(tiny)
    evaluate(popularity.scorer(), tiny, on="valid", metrics=[METRIC])  # compiles the kernels
    search.report(_run_baseline(search, baseline("popularity")))
    search.recency = choose_recency(before(search.split, "test"))
    for model in untrained_models()[1:]:
        if search.stop:
            return
        by_age = "half_life" in options_of(MODELS[model].Options)
        if by_age and search.split.train.timestamps is None and not search.recency.has_drift:
            search.skip(model, "the events have no timestamps, and their order is random")
            continue
        if reason := _refusal(search, model):
            search.skip(model, reason)
            continue
        search.show(model)
        trial = _run_baseline(search, baseline(model))
        search.report(trial)
        for candidate in further_baselines(model):
            if trial.seconds > _CHEAP * search.budget.seconds or search.stop:
                break
            search.report(_run_baseline(search, candidate))


def _run_baseline(search: Search, candidate: Candidate) -> Trial:
    clock = search.budget.clock
    begun = clock()
    try:
        recommender = Recommender(**candidate.settings).fit(search.validation)
        fitted = clock()
        result = evaluate(recommender.scorer(), search.validation, on="valid", metrics=[METRIC])
    except (InputError, MemoryError) as error:
        seconds = clock() - begun
        return Trial("refused", seconds=seconds, message=str(error), candidate=candidate)
    ended = clock()
    chosen = {k: v for k, v in recommender.fitted_params.items() if k in ("half_life", "by")}
    message, description = "", candidate.description
    if chosen and search.recency is not None:
        message = str(search.recency)
        if not search.recency.has_drift:
            description = "recent events predict no more than others: the same as popularity"
    settings = {**candidate.settings, **chosen}
    return Trial(
        "fitted", result.mean(METRIC), seconds=ended - begun, message=message,
        candidate=replace(candidate, settings=settings, description=description),
        fit_seconds=fitted - begun, rank_seconds=(ended - fitted) / search.n_valid_users,
    )  # fmt: skip


def _refusal(search: Search, model: str) -> str:
    """Why a baseline is not fitted, or ""."""
    seconds, size = MODELS[model].load().fit_cost(search.split.train)
    left, memory = max(search.budget.left, 0.0), available_memory()
    if seconds > _BASELINE_FRACTION * left:
        return f"it would take about {seconds:.1f} s of the {left:.1f} s left"
    if memory is not None and size > memory:
        return f"it needs {size / 1e9:.1f} GB for {search.split.n_items:,} items"
    return ""


# --- trained candidates ---------------------------------------------------------------------------


def warm_up() -> None:
    """Train every kind of candidate for a moment, so that the kernels are compiled beforehand."""
    users = np.arange(40, dtype=np.int32)
    events = Interactions.of(np.repeat(users, 4), (users[:, None] + np.arange(4)).ravel() % 30)
    split = hold_out(Split(events), 0.25, seed=0)
    short = {"epochs": 1, "dimensions": 8, "valid_metric": METRIC}
    for size, base in sized_recipes(events).items():
        pooled = Candidate("pooled", {**base, "solver": "sgda"}, "medium-sized catalogues")
        for candidate in (*variants(size, base, events, None), pooled):
            Recommender(**{**candidate.settings, **short}).fit(split)


def run_candidate(search: Search, candidate: Candidate) -> Trial | None:
    """Train a candidate if there is time for it; None if not."""
    if not search.affordable(candidate, _LEAST_EPOCHS):
        search.skip(candidate.name, "there was not enough time")
        return None
    trial = train_candidate(search, candidate)
    search.report(trial)
    return trial


def train_candidate(search: Search, candidate: Candidate) -> Trial:
    """Train until the end or as long as there is time; the best epoch that can be paid for."""
    clock, budget = search.budget.clock, search.budget
    begun = last = clock()
    leader = search.best_trained
    needed = search.reserve(search.best, leader)
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
        price = search.reserve(_best(search.best, trial), _best(leader, trial))
        if value > best.sort_value and price <= budget.left:
            best, needed = trial, max(needed, price)
        highest = max(highest, value)
        search.show(f"{candidate.name}: epoch {epoch.number}, validation {METRIC} {value:.4f}")
        if price > budget.left and not search.stop:
            return "out of time"
        reason = on_batch()
        if not reason and leader is not None and epoch.number >= _LEAST_EPOCHS:
            behind = highest < _BEHIND * max(leader.curve[: epoch.number])
            return "behind" if behind else ""
        return reason

    search.show(candidate.name)
    settings = {**candidate.settings, "seed": search.seed, "valid_metric": METRIC}
    result = run_trial(
        settings, search.validation, on_batch=on_batch, on_validation=on_validation, clock=clock
    )
    if result.signal is not None:
        search.stop.signal = result.signal
    chosen = {"value": best.value, "best_epoch": best.best_epoch}
    return replace(best, **{**vars(result), **chosen})


def affordable_variants(search: Search, tried: Candidate) -> Iterator[Candidate]:
    """The variants of the largest recipe there is time for, which is determined before each."""
    done: set[str] = set()
    sizes = sized_recipes(search.split.train)
    smallest = list(sizes)[-1]
    while True:
        for size, base in sizes.items():
            candidates = variants(size, base, search.split.train, search.recency)
            if search.affordable(candidates[0], _FULL_EPOCHS) or size == smallest:
                break
        kinds = {candidate.name.split(",")[0]: candidate for candidate in candidates}
        left = {k: c for k, c in kinds.items() if k not in done and c.settings != tried.settings}
        if not left:
            return
        kind, candidate = next(iter(left.items()))
        done.add(kind)
        yield candidate


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
        candidate = Candidate(f"search {number}", settings, f"Optuna, around {start.name}")
        best_before = search.best_trained
        trial = run_candidate(search, candidate)
        if trial is None:
            return
        if trial.value is None:
            study.tell(drawn, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(drawn, trial.value)
        failures = 0 if search.best_trained is not best_before else failures + 1


def run_search(search: Search) -> None:
    """Baselines, the scout, the variants of the recipe, then a search around the best of them."""
    run_baselines(search)
    first = scout(search.split.train)
    if search.stop or search.spare <= 0:
        search.skip(first.name, "there was no time for a trained model")
        return
    search.report(train_candidate(search, first))
    for candidate in affordable_variants(search, first):
        if search.stop:
            return
        run_candidate(search, candidate)
    if not search.stop:
        search_around_best(search)


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
    split, winner, trained = search.split, search.best, search.best_trained
    assert winner is not None
    assert split.valid is not None
    assert split.test is not None
    known = join([split.train, split.valid])
    test = Split(known, None, sample_users(split.test, TEST_USERS, search.seed))
    trials = [winner, *(trial for trial in search.best_baselines if trial is not winner)]
    rival = trained if trained is not winner else None
    if rival is not None and not search.stop:
        needed = search.reserve(winner, rival) / _SAFETY
        trials += [rival] if search.budget.left >= needed else []

    # Test every finalist; the best trained model is optional where a baseline has won.
    tested: list[tuple[Trial, Recommender, Evaluation]] = []
    for trial in trials:
        search.show(f"testing {trial.candidate.name}")
        until = search.budget.seconds - search.reserve(winner) if trial is rival else math.inf
        try:
            recommender = fit_again(trial, [split.train, split.valid], search, until)
        except _OutOfTime:
            continue
        except _FIT_ERRORS as error:
            search.skip(trial.candidate.name, f"it could not be fitted again: {error}")
            continue
        evaluation = evaluate(recommender.scorer(), test, metrics=METRICS)
        tested.append((trial, recommender, evaluation))
    if not tested:
        raise InputError("no method could be fitted on train and valid together")
    if tested[0][0] is not winner:  # the next best on validation takes its place
        tested.sort(key=lambda finalist: -finalist[0].sort_value)
    winner, delivered, evaluation = tested[0]
    logger.info(
        "%s",
        f"{search.budget.passed:6.0f} s  test part read once: {len(tested)} methods on"
        f" {len(evaluation.users):,} users",
    )

    # Fit the winner on all events; without time, deliver the tested model.
    search.show(f"fitting {winner.candidate.name} on all events")
    parts = [split.train, split.valid, split.test]
    on_all_events = True
    try:
        delivered = fit_again(winner, parts, search, _OVERTIME * search.budget.seconds)
    except (_OutOfTime, *_FIT_ERRORS):
        on_all_events = False
        # Items of the test part are not recommended to users who have them.
        fitted = delivered.require_fitted()
        delivered.fitted = replace(fitted, histories=join(parts).matrix)
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
    settings = _refit_settings(trial, search.seed)
    if trial.candidate.is_baseline:
        return Recommender(**settings, refit=True).fit(Split(join(parts[:-1]), parts[-1]))

    def check_time(_: Any) -> None:
        if until < math.inf and search.budget.passed > until:
            raise _OutOfTime

    recommender = Recommender(**settings).fit(
        Split(join(parts)), on_batch=check_time, on_epoch=check_time
    )
    if recommender.history is not None and recommender.history.signal is not None:
        search.stop.signal = recommender.history.signal
        raise _OutOfTime
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
            return dict(baseline("popularity").settings)
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
        how: to split a table; a key of `llpauc.search.candidates.WAYS`.
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
