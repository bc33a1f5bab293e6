"""Any loss of the library in a plain torch loop: the twenty lines of `train`.

    python examples/plain_torch_loop.py

The data are blocks: users of a block like its items, and a fifth of these are hidden. A model that
has learnt the blocks ranks the hidden items above those of the other blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from llpauc.losses import (
    LOSSES,
    Context,
    LLPAUCLoss,
    Loss,
    make_loss,
    minimax_optimizer,
)

BLOCKS, USERS, ITEMS = 4, 12, 12  # users and items of each block


def block_matrix(seed: int = 0) -> tuple[Tensor, Tensor]:
    """(n_users, n_items) bool: which items each user likes, and which of those are hidden."""
    generator = torch.Generator().manual_seed(seed)
    likes = torch.block_diag(*[torch.ones(USERS, ITEMS)] * BLOCKS).bool()
    hidden = likes & (torch.rand(likes.shape, generator=generator) < 0.2)
    return likes, hidden


def train(loss: Loss, seen: Tensor, steps: int = 200, seed: int = 0) -> Tensor:
    """Matrix factorisation of the bool matrix `seen`; the scores of all users and items."""
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.nn.Parameter(0.1 * torch.randn(n, 8, generator=generator)) for n in seen.shape]
    optimizer = minimax_optimizer(
        torch.optim.Adam, tables, loss, lr=0.03
    )  # instead of torch.optim.Adam
    events = seen.nonzero()

    def score() -> Tensor:  # the model ranks with the score it is trained with
        user, item = (normalize(t) if loss.score == "cosine" else t for t in tables)
        return user @ item.T

    for step in range(steps):
        users, items = events[torch.randperm(len(events), generator=generator)[:128]].T
        scores = score()
        if step % 50 == 0:  # for losses with thresholds or temperatures of users
            loss.begin_epoch(1, lambda function, scores=scores: function(scores.detach(), seen))
        negatives = scores[users]  # all items; the mask leaves out what is seen
        context = Context(step=step, users=users)
        value = loss(
            negatives.gather(1, items[:, None])[:, 0], negatives, ~seen[users], context=context
        )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return score().detach()


def recovered(scores: Tensor, likes: Tensor, hidden: Tensor) -> float:
    """Fraction of (hidden item, item of another block) pairs of a user in the right order."""
    right = scores[:, :, None] > scores[:, None, :]
    pairs = hidden[:, :, None] & ~likes[:, None, :]
    return (right & pairs).sum().item() / pairs.sum().item()


# Two losses have required parameters; the ramp of TCE is shortened for this short training.
PARAMS: dict[str, dict[str, float | int]] = {
    "llpauc": {"alpha": 0.7, "beta": 0.3},
    "opauc": {"beta": 0.3},
    "tce": {"ramp_steps": 100},
}


def main() -> None:
    likes, hidden = block_matrix()
    for name in LOSSES:
        loss = make_loss(name, **PARAMS.get(name, {}))
        fraction = recovered(train(loss, likes & ~hidden), likes, hidden)
        print(f"{name:12s} {fraction:.3f} of the pairs in order")
    exact = LLPAUCLoss(0.7, 0.3, solver="exact")
    fraction = recovered(train(exact, likes & ~hidden), likes, hidden)
    print(f"{'llpauc exact':12s} {fraction:.3f} of the pairs in order")


if __name__ == "__main__":
    main()
