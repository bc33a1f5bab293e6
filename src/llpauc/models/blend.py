"""A blend: the weighted sum of the scores of two models, with a weight chosen on validation."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numba
import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.data.interactions import Split
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.models.base import Arrays, FitData, FitResult, Model, NewEvents, Training
from llpauc.models.choice import best_of_grid, valid_metric
from llpauc.training import Diverged

_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_FIRST = 0.3  # of the grid, also where there is nothing to choose on
_PREFIX = "blend."  # of the arrays of the second model


class Blend(Model):
    """score(u, i) = (1 - w) z(s_ui) + w z(t_ui), with the scores s and t of two models.

    z subtracts the mean over the items of a user and divides by their standard deviation, since the
    scores of a linear model grow with the length of the history and those of a cosine do not.

    Args:
        main: a trained model; the options of the blend are among its options.
        other: a model without training.
        weight: w in [0, 1]; None to choose it on the validation part.
    """

    name: ClassVar[str] = "blend"

    def __init__(self, main: Model, other: Model, weight: float | None = None) -> None:
        self.main, self.weight = main, weight
        self.other: Model | None = other

    @property
    def options(self) -> Any:
        """The options of the main model, with those that validation has chosen."""
        if self.other is None:
            return dataclasses.replace(self.main.options, blend=None)
        chosen = getattr(self.other.options, "regularization", None)
        return dataclasses.replace(
            self.main.options, blend_weight=self.weight, blend_regularization=chosen
        )

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        """Fit both models. Where training is interrupted or diverges, there is only the main one."""
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
        assert self.other is not None
        if result.events is not data.split.train or not self.other.is_fitted:
            self.other.fit(FitData(data.split, [result.events]))
        if self.weight is None:
            self.weight = _FIRST
        self._set_fallback()
        return result

    def _leave_main(self) -> None:
        self.other = None
        if self.main.is_fitted:
            self.fallback = self.main.fallback

    def _choose(self, split: Split) -> None:
        """Fit the second model on train, and choose its options and the weight on validation."""
        if split.valid is None:
            return
        assert self.other is not None
        self.other.fit(FitData(split, [split.train]))
        if self.weight is None:
            histories = split.train.matrix
            scorers = self.main.scorer(histories), self.other.scorer(histories)
            self.weight = best_of_grid(
                _GRID, _FIRST, lambda w: valid_metric(_BlendScorer(*scorers, w), split)
            )

    def _set_fallback(self) -> None:
        assert self.other is not None
        scores = np.stack([self.main.fallback, self.other.fallback]).astype(np.float32)
        _add_standardized(scores[:1], scores[1:], self.weight)
        self.fallback = scores[0]

    # --- scoring --------------------------------------------------------------------------------

    def scorer(self, histories: Any) -> Scorer:
        main = self.main.scorer(histories)
        if self.other is None:
            return main
        return _BlendScorer(main, self.other.scorer(histories), self.weight)

    def scores_of(self, histories: Any) -> Scores:
        scores = self.main.scores_of(histories)
        if self.other is None:
            return scores
        _add_standardized(scores, self.other.scores_of(histories), self.weight)
        return scores

    def item_units(self) -> Scores | None:
        return self.main.item_units()

    # --- new events, saving ---------------------------------------------------------------------

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        assert self.other is not None
        main, result = self.main.extend(new, training)
        other, _ = self.other.extend(new)
        model = Blend(main, other, self.weight)
        model._set_fallback()
        return model, result

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        if self.other is None:
            return self.main.arrays()
        others = {_PREFIX + name: array for name, array in self.other.arrays().items()}
        return {**self.main.arrays(), **others}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        assert self.other is not None
        self.main.load_arrays(arrays, n_users, n_items)
        prefixed = [name for name in arrays if name.startswith(_PREFIX)]
        others = {name.removeprefix(_PREFIX): arrays[name] for name in prefixed}
        self.other.load_arrays(others, n_users, n_items)
        self._set_fallback()


class _BlendScorer:
    def __init__(self, main: Scorer, other: Scorer, weight: float | None) -> None:
        self._main, self._other, self._weight = main, other, weight

    @property
    def n_items(self) -> int:
        return self._main.n_items

    def scores_into(self, users: Indices, out: Scores) -> None:
        self._main.scores_into(users, out)
        others = np.empty_like(out)
        self._other.scores_into(users, others)
        _add_standardized(out, others, self._weight)


@numba.njit(nogil=True, cache=True)
def _add_standardized(scores, others, weight):
    """scores = (1 - weight) z(scores) + weight z(others), row by row."""
    n = scores.shape[1]
    for row in range(len(scores)):
        a, b = scores[row], others[row]
        mean_a, mean_b = 0.0, 0.0
        for i in range(n):
            mean_a += a[i]
            mean_b += b[i]
        mean_a, mean_b = mean_a / n, mean_b / n
        square_a, square_b = 0.0, 0.0
        for i in range(n):
            square_a += (a[i] - mean_a) ** 2
            square_b += (b[i] - mean_b) ** 2
        # A row of equal scores stays at 0.
        scale_a = (1 - weight) / max(np.sqrt(square_a / n), 1e-12)
        scale_b = weight / max(np.sqrt(square_b / n), 1e-12)
        for i in range(n):
            a[i] = scale_a * (a[i] - mean_a) + scale_b * (b[i] - mean_b)
