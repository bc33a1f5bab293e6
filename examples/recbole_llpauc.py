"""LLPAUC in RecBole: any of its pairwise models, with two lines changed.

    python examples/recbole_llpauc.py

trains RecBole's BPR model with BPR's loss and with LLPAUC on generated events, and prints the
metrics of RecBole. Without RecBole it shows only how pairs become rows. RecBole 1.2.1 requires
NumPy below 2; this was tested with NumPy 1.26.4, pandas 2.2.3, scipy 1.15.3 and
pyarrow 18.1.0.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llpauc.data.interactions import Interactions
from llpauc.losses import LLPAUCLoss, Loss, minimax_optimizer


class PairsAsRows(nn.Module):
    """A loss of llpauc in place of RecBole's BPRLoss.

    RecBole passes flat pairs: the batch of B positives repeated N times, and N * B negatives, the
    first of every positive before the second. Here they become (B,) and (B, N).
    """

    def __init__(self, loss: Loss, negatives: int) -> None:
        super().__init__()
        self.loss, self.negatives = loss, negatives

    def forward(self, pos_scores: Tensor, neg_scores: Tensor) -> Tensor:
        return self.loss(
            pos_scores.view(self.negatives, -1)[0], neg_scores.view(self.negatives, -1).T
        )


def minimax_trainer(trainer: type) -> type:
    """A RecBole trainer whose optimizer also ascends and projects, which RecBole does not do."""

    class MinimaxTrainer(trainer):  # type: ignore[misc]
        def _build_optimizer(self, **_: Any) -> torch.optim.Optimizer:
            losses = [part for part in self.model.modules() if isinstance(part, Loss)]
            loss_parameters = {id(p) for loss in losses for p in loss.parameters()}
            return minimax_optimizer(
                torch.optim.Adam,
                [p for p in self.model.parameters() if id(p) not in loss_parameters],
                losses[0],
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
            )

    return MinimaxTrainer


def generate_events(seed: int = 0) -> Interactions:
    """Two tastes: even users like even items, a few popular ones most."""
    generator = torch.Generator().manual_seed(seed)
    users = torch.arange(200).repeat_interleave(15)
    ranks = (40 * torch.rand(len(users), generator=generator) ** 2).long()
    pairs = sorted({(int(u), int(2 * rank + u % 2)) for u, rank in zip(users, ranks, strict=True)})
    return Interactions.of([f"u{user}" for user, _ in pairs], [f"i{item}" for _, item in pairs])


def train(folder: Path, with_llpauc: bool, negatives: int = 20, epochs: int = 10) -> float:
    """NDCG@10 on RecBole's validation part."""
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import BPR
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    options: dict[str, Any] = {
        "data_path": str(folder),
        "load_col": {"inter": ["user_id", "item_id"]},
        "checkpoint_dir": str(folder),
        "epochs": epochs,
        "learning_rate": 0.01,
        "train_neg_sample_args": {
            "distribution": "uniform",
            "sample_num": negatives,
            "dynamic": False,
            "candidate_num": 0,
        },
        "valid_metric": "NDCG@10",
        "seed": 1,
        "show_progress": False,
        "state": "WARNING",
    }
    config = Config(model="BPR", dataset="events", config_dict=options)
    init_seed(config["seed"], True)
    parts = data_preparation(config, create_dataset(config))
    model = BPR(config, parts[0].dataset)
    trainer: type = Trainer
    if with_llpauc:
        model.loss = PairsAsRows(LLPAUCLoss(alpha=0.7, beta=0.3), negatives)  # line one
        trainer = minimax_trainer(Trainer)  # line two
    best, _ = trainer(config, model).fit(parts[0], parts[1], verbose=False, saved=False)
    return float(best)


def main() -> None:
    rows = PairsAsRows(LLPAUCLoss(alpha=0.7, beta=0.3), negatives=3)
    pos, neg = torch.tensor([1.0, 2.0]), torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    flat = rows(pos.repeat(3), neg.T.reshape(-1))
    print(f"RecBole's pairs {flat:.6f}, rows {rows.loss(pos, neg):.6f}")
    if find_spec("recbole") is None:
        print("RecBole is not installed: nothing is trained")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "events").mkdir()
        events = generate_events()
        users = events.user_ids.ids(events.users)
        items = events.item_ids.ids(events.items)
        lines = [f"{user}\t{item}" for user, item in zip(users, items, strict=True)]
        text = "\n".join(["user_id:token\titem_id:token", *lines]) + "\n"
        (folder / "events" / "events.inter").write_text(text, encoding="utf-8")
        for name, with_llpauc in (("BPR", False), ("LLPAUC", True)):
            print(f"RecBole's BPR model, loss {name}: NDCG@10 {train(folder, with_llpauc):.4f}")


if __name__ == "__main__":
    main()
