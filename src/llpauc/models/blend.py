"""A blend: the weighted sum of the scores of several models, with weights chosen on validation."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numba
import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.data.interactions import Split, pairs_before
from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.metrics import ndcg
from llpauc.models.base import Arrays, FitData, FitResult, Model, NewEvents, Training
from llpauc.models.choice import sampled_valid
from llpauc.models.registry import blend_text
from llpauc.training import Diverged

logger = logging.getLogger(__name__)

_GRID = np.linspace(0, 1, 21)
_UNCHOSEN = 0.3  # weight of a model where there is nothing to choose on
_K = 20
_CANDIDATES = 100  # best items of each model for a user; the best of a blend are among them
_ROUNDS = 3
_TILE = 64  # users whose scores are in memory at a time


class Blend(Model):
    """score(u, i) = sum over models m of w_m z(s_m)_ui, with weights that sum to 1.

    z subtracts the mean over the items of a user and divides by their standard deviation, since the
    scores of a linear model grow with the length of the history and those of a cosine do not.

    Users without history get the scores of the models that have the same list for all users, where
    there are any (recent popularity), else the sum of all fallbacks.

    Weights that are not given are those of the best NDCG@20 on the validation part; see
    `choose_weights`. A model that does not help is dropped.

    Args:
        main: a trained model; its option `blend` names the others.
        others: models without training, by name.
        weights: of the others, by name; None to choose them.
    """

    name: ClassVar[str] = "blend"

    def __init__(
        self, main: Model, others: Mapping[str, Model], weights: Mapping[str, float | None]
    ) -> None:
        self.main, self.others = main, dict(others)
        given = [weight for weight in weights.values() if weight is not None]
        self.weights = [1 - sum(given), *given] if given else []

    @property
    def options(self) -> Any:
        """The options of the main model; `blend` has the weights and options that were chosen."""
        blended = {}
        for weight, (name, other) in zip(self.weights[1:], self.others.items(), strict=True):
            options = dataclasses.asdict(other.options)
            given = {key: value for key, value in options.items() if value is not None}
            blended[name] = {"weight": weight, **given}
        return dataclasses.replace(self.main.options, blend=blend_text(blended))

    @property
    def description(self) -> str:
        """The weights in words, such as "0.70 lightgcn + 0.30 ease"."""
        names = [self.main.name, *self.others]
        return " + ".join(f"{w:.2f} {n}" for w, n in zip(self.weights, names, strict=True) if w)

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        """Fit all models; an interrupted or diverged training leaves only the main model."""
        assert training is not None
        given = training.on_chosen

        def on_chosen() -> None:
            if not self.weights:
                self._choose(data.split)
            if given is not None and self.weights:
                for other in self.others.values():
                    if not other.is_fitted:
                        other.fit(FitData(data.split, [data.split.train]))
                self._set_fallback()
                given()

        training = dataclasses.replace(training, on_chosen=on_chosen)
        try:
            result = self.main.fit(data, training)
        except Diverged:
            self._leave_main()
            raise
        interrupted = result.history is not None and result.history.signal is not None
        if interrupted or not self.main.is_fitted:  # of several processes, the first is fitted
            self._leave_main()
            return result
        if not self.weights:  # there are no validation events
            rest = (1 - _UNCHOSEN) ** len(self.others)
            self.weights = [rest] + [(1 - rest) / len(self.others)] * len(self.others)
        for other in self.others.values():
            if result.events is not data.split.train or not other.is_fitted:
                other.fit(FitData(data.split, [result.events]))
        self._set_fallback()
        return result

    def _leave_main(self) -> None:
        self.others, self.weights = {}, [1.0]
        if self.main.is_fitted:
            self._set_fallback()

    def _choose(self, split: Split) -> None:
        """Fit the other models on train, and choose their options and weights on validation."""
        if split.valid is None:
            return
        for name, other in list(self.others.items()):
            try:
                other.fit(FitData(split, [split.train]))
            except (InputError, MemoryError) as error:
                logger.warning("%s", f"{name} is left out of the blend: {error}")
                del self.others[name]
        models = [self.main, *self.others.values()]
        weights = choose_weights([model.scorer(split.train.positives) for model in models], split)
        helpful = {n: round(w, 4) for n, w in zip(self.others, weights[1:], strict=True) if w}
        self.others = {name: self.others[name] for name in helpful}
        self.weights = [1 - sum(helpful.values()), *helpful.values()]

    def _set_fallback(self) -> None:
        models = zip([self.main, *self.others.values()], self.weights, strict=True)
        weighted = [(model, weight) for model, weight in models if weight]
        same = [(model, weight) for model, weight in weighted if not model.is_personal]
        self.fallback = np.zeros(self.main.n_items, np.float32)
        for model, weight in same or weighted:
            row = model.fallback.astype(np.float32)[None]
            _standardize(row, weight)
            self.fallback += row[0]

    # --- scoring --------------------------------------------------------------------------------

    def scorer(self, histories: Any) -> Scorer:
        models = [self.main, *self.others.values()]
        scorers = [model.scorer(histories) for model in models]
        return _BlendScorer(scorers, self.weights, np.diff(histories.indptr) == 0, self.fallback)

    def scores_of(self, histories: Any) -> Scores:
        total = np.zeros(histories.shape, np.float32)
        for model, weight in zip([self.main, *self.others.values()], self.weights, strict=True):
            scores = np.ascontiguousarray(model.scores_of(histories), np.float32)
            _standardize(scores, weight)
            total += scores
        total[np.diff(histories.indptr) == 0] = self.fallback
        return total

    def item_units(self) -> Scores | None:
        return self.main.item_units()

    # --- new events, saving ---------------------------------------------------------------------

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        main, result = self.main.extend(new, training)
        others = {name: other.extend(new)[0] for name, other in self.others.items()}
        model = Blend(main, others, {})
        model.weights = self.weights
        model._set_fallback()
        return model, result

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = self.main.arrays()
        for name, other in self.others.items():
            arrays |= {f"{name}.{key}": array for key, array in other.arrays().items()}
        return arrays

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        self.main.load_arrays(arrays, n_users, n_items)
        for name, other in self.others.items():
            prefix = f"{name}."
            named = {k.removeprefix(prefix): arrays[k] for k in arrays if k.startswith(prefix)}
            other.load_arrays(named, n_users, n_items)
        self._set_fallback()


def choose_weights(scorers: Sequence[Scorer], split: Split) -> list[float]:
    """Weights of the best NDCG@20 of the warm validation users; they sum to 1.

    They start with the first model alone. In turn each other model gets the share, in steps of
    0.05, that is best while the proportions of the rest stay, until nothing changes. Only items
    among the first 100 of at least one model are ranked, which is exact for each model alone.
    """
    split = sampled_valid(split)
    assert split.valid is not None
    users = np.flatnonzero(np.diff(split.valid.targets.indptr)).astype(np.int32)
    warm = users[np.diff(split.train.positives.indptr)[users] > 0]
    users = warm if len(warm) else users
    masked, relevant = pairs_before(split, "valid")[users], split.valid.targets[users]
    n_relevant = np.diff(relevant.indptr)
    lists = [rank(scorer, users, _CANDIDATES, masked=masked) for scorer in scorers]
    candidates = np.sort(np.concatenate([ranking.items for ranking in lists], axis=1), axis=1)
    is_new = np.diff(candidates, axis=1, prepend=-1) > 0  # items of two lists count once
    hits = np.zeros(candidates.shape, bool)
    scores = np.empty((len(scorers), *candidates.shape), np.float32)
    block = np.empty((_TILE, scorers[0].n_items), np.float32)
    for start in range(0, len(users), _TILE):
        rows = slice(start, min(start + _TILE, len(users)))
        picked, tile = candidates[rows], block[: rows.stop - start]
        hits[rows] = np.take_along_axis(relevant[rows].toarray() > 0, picked, axis=1)
        for scorer, of_model in zip(scorers, scores, strict=True):
            scorer.scores_into(users[rows], tile)
            _standardize(tile, np.float32(1))
            of_model[rows] = np.take_along_axis(tile, picked, axis=1)

    def value(weights: npt.NDArray[np.float64]) -> float:
        blended = np.tensordot(weights.astype(np.float32), scores, axes=1)
        blended[~is_new] = -np.inf
        k = min(_K, blended.shape[1])
        best = np.argpartition(-blended, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(blended, best, axis=1), axis=1, kind="stable")
        top = np.take_along_axis(best, order, axis=1)
        return float(ndcg(np.take_along_axis(hits, top, axis=1), n_relevant, _K).mean())

    weights = np.eye(len(scorers))[0]
    highest = value(weights)
    for _ in range(_ROUNDS):
        before = weights
        for model in range(1, len(scorers)):
            rest = np.where(np.arange(len(scorers)) == model, 0.0, weights)
            if not rest.any():
                continue
            for share in _GRID:
                trial = (1 - share) * rest / rest.sum()
                trial[model] += share
                if (found := value(trial)) > highest:
                    highest, weights = found, trial
        if weights is before:
            break
    return [float(weight) for weight in weights]


class _BlendScorer:
    def __init__(
        self,
        scorers: Sequence[Scorer],
        weights: Sequence[float],
        is_cold: npt.NDArray[np.bool_],
        fallback: Scores,
    ) -> None:
        self._scorers, self._weights = scorers, weights
        self._is_cold, self._fallback = is_cold, fallback

    @property
    def n_items(self) -> int:
        return self._scorers[0].n_items

    def scores_into(self, users: Indices, out: Scores) -> None:
        out[:] = 0
        scores = np.empty_like(out)
        for scorer, weight in zip(self._scorers, self._weights, strict=True):
            if weight:
                scorer.scores_into(users, scores)
                _standardize(scores, weight)
                out += scores
        out[self._is_cold[users]] = self._fallback


@numba.njit(nogil=True, cache=True)
def _standardize(scores, weight):
    """scores = weight z(scores), row by row; a row of equal scores becomes 0."""
    n = scores.shape[1]
    for row in scores:
        mean, square = 0.0, 0.0
        for i in range(n):
            mean += row[i]
        mean /= n
        for i in range(n):
            square += (row[i] - mean) ** 2
        scale = weight / max(np.sqrt(square / n), 1e-12)
        for i in range(n):
            row[i] = scale * (row[i] - mean)
