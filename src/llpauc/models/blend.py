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
from llpauc.data.interactions import Split
from llpauc.errors import InputError
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.models.base import Arrays, FitData, FitResult, Model, NewEvents, Training, check_shape
from llpauc.models.choice import best_of_grid, valid_metric
from llpauc.training import Diverged

logger = logging.getLogger(__name__)

_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_FIRST = 0.3  # of the grid, also where there is nothing to choose on
_WEIGHTS = "blend_weights"  # the array that is saved


class Blend(Model):
    """score(u, i) = sum over models m of w_m z(s_m)_ui, with weights that sum to 1.

    z subtracts the mean over the items of a user and divides by their standard deviation, since the
    scores of a linear model grow with the length of the history and those of a cosine do not.

    The weights start with the main model alone. Then each other model is added: the scores so far
    count 1 - v and those of the added model v, with the v in 0, 0.1, ..., 1 of the best NDCG@20 on
    the validation part. A model that does not help gets v = 0.

    Args:
        main: a trained model; its option `blend` names the others.
        others: models without training, by name.
    """

    name: ClassVar[str] = "blend"

    def __init__(self, main: Model, others: Mapping[str, Model]) -> None:
        self.main, self.others = main, dict(others)
        self.weights: list[float] = []

    @property
    def options(self) -> Any:
        """The options of the main model."""
        return dataclasses.replace(self.main.options, blend=",".join(self.others) or None)

    @property
    def description(self) -> str:
        """The weights in words, such as "0.70 lightgcn + 0.30 ease"."""
        names = [self.main.name, *self.others]
        return " + ".join(f"{w:.2f} {n}" for w, n in zip(self.weights, names, strict=True) if w)

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        """Fit all models; an interrupted or diverged training leaves only the main model."""
        assert training is not None
        training = dataclasses.replace(training, on_chosen=lambda: self._choose(data.split))
        try:
            result = self.main.fit(data, training)
        except Diverged:
            self._leave_main()
            raise
        if result.history is not None and result.history.signal is not None:
            self._leave_main()
            return result
        if not self.weights:  # there are no validation events
            self.weights = _with_weights([1.0], [_FIRST] * len(self.others))
        for name in [n for n, w in zip(self.others, self.weights[1:], strict=True) if not w]:
            del self.others[name]
        self.weights = [self.weights[0], *(weight for weight in self.weights[1:] if weight)]
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
        histories, self.weights = split.train.matrix, [1.0]
        scorers = [self.main.scorer(histories)]
        for name, other in list(self.others.items()):
            try:
                other.fit(FitData(split, [split.train]))
            except (InputError, MemoryError) as error:
                logger.warning("%s", f"{name} is left out of the blend: {error}")
                del self.others[name]
                continue
            scorers.append(other.scorer(histories))

            def value(added: float) -> float:
                weights = _with_weights(self.weights, [added])
                return valid_metric(_BlendScorer(scorers, weights), split)

            self.weights = _with_weights(self.weights, [best_of_grid(_GRID, _FIRST, value)])

    def _set_fallback(self) -> None:
        models = [self.main, *self.others.values()]
        rows = np.stack([model.fallback for model in models]).astype(np.float32)
        for row, weight in zip(rows, self.weights, strict=True):
            _standardize(row[None], weight)
        self.fallback = rows.sum(axis=0)

    # --- scoring --------------------------------------------------------------------------------

    def scorer(self, histories: Any) -> Scorer:
        models = [self.main, *self.others.values()]
        return _BlendScorer([model.scorer(histories) for model in models], self.weights)

    def scores_of(self, histories: Any) -> Scores:
        total = np.zeros(histories.shape, np.float32)
        for model, weight in zip([self.main, *self.others.values()], self.weights, strict=True):
            scores = np.ascontiguousarray(model.scores_of(histories), np.float32)
            _standardize(scores, weight)
            total += scores
        return total

    def item_units(self) -> Scores | None:
        return self.main.item_units()

    # --- new events, saving ---------------------------------------------------------------------

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        main, result = self.main.extend(new, training)
        model = Blend(main, {name: other.extend(new)[0] for name, other in self.others.items()})
        model.weights = self.weights
        model._set_fallback()
        return model, result

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {**self.main.arrays(), _WEIGHTS: np.array(self.weights)}
        for name, other in self.others.items():
            arrays |= {f"{name}.{key}": array for key, array in other.arrays().items()}
            for option, value in dataclasses.asdict(other.options).items():
                if value is not None:
                    arrays[f"{name}.options.{option}"] = np.array([value])
        return arrays

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        self.main.load_arrays(arrays, n_users, n_items)
        check_shape(_WEIGHTS, arrays[_WEIGHTS], (1 + len(self.others),))
        self.weights = arrays[_WEIGHTS].tolist()
        for name, other in self.others.items():
            prefix, chosen = f"{name}.", f"{name}.options."
            options = {k.removeprefix(chosen): arrays[k].item() for k in arrays if chosen in k}
            other.options = other.Options(**options)
            named = {k.removeprefix(prefix): arrays[k] for k in arrays if k.startswith(prefix)}
            other.load_arrays(named, n_users, n_items)
        self._set_fallback()


def _with_weights(weights: Sequence[float], added: Sequence[float]) -> list[float]:
    """
    >>> _with_weights([1.0], [0.5, 0.2])
    [0.4, 0.4, 0.2]
    """
    out = list(weights)
    for weight in added:
        out = [*(before * (1 - weight) for before in out), weight]
    return out


class _BlendScorer:
    def __init__(self, scorers: Sequence[Scorer], weights: Sequence[float]) -> None:
        self._scorers, self._weights = scorers, weights

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
