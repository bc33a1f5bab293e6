"""Two tables that train nothing: the data sets, and the time of a step of every loss."""

from __future__ import annotations

from llpauc.errors import InputError
from llpauc.losses import LOSSES
from llpauc.research.cells import Cell
from llpauc.research.lab import Lab
from llpauc.research.paper import datasets
from llpauc.research.paper.published import SIZES
from llpauc.research.paper.settings import PAPER
from llpauc.research.plots import paper as pictures
from llpauc.research.report import Report, Row, bullet_list, markdown_table


def data_sets(lab: Lab) -> Report:
    """What the paper's table of data sets has, and what it leaves out."""
    if not lab.available:
        raise InputError(datasets.missing("adressa-clean", lab.data))
    rows: list[Row] = []
    cold: dict[str, float] = {}
    for name in lab.available:
        found = datasets.facts(lab.split(name))
        cold[name] = 100 * found.cold_test_users
        printed = SIZES.get(name)
        rows.append(
            {
                "data": name,
                "users": found.users,
                "items": found.items,
                "interactions": found.interactions,
                "sparsity": f"{found.sparsity:.2%}",
                "the paper": "-" if printed is None else
                f"{printed.users:,} / {printed.items:,} / {printed.interactions:,} /"
                f" {printed.sparsity:.2%}",
                "test users": found.test_users,
                "of them cold": f"{found.cold_test_users:.1%}",
                "duplicates": ", ".join(f"{part} {n}" for part, n in found.duplicates.items() if n)
                or "none",
                "test pairs also in train": found.in_train,
                "also in valid": found.in_valid,
            }
        )  # fmt: skip
    table = markdown_table(
        list(rows[0]),
        [[f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows],
    )
    absent = [
        datasets.missing(name, lab.data).replace(f"{lab.data}/", "").split("; ready now")[0]
        for name in datasets.NAMES
        if name not in lab.available
    ]
    said = (
        "Counted on the files, without a padding row; the paper counts one user and one item more."
        " Cold test users have no training event; a pair that stands in train and in test leaks."
    )
    parts = [said, table, *([bullet_list(absent)] if absent else [])]
    figure = pictures.bars_across(cold, "test users without a training event, %", "Cold users")
    return Report("table-datasets", "The data sets", parts, rows, figure,
                  "Share of cold test users")  # fmt: skip


def complexity(lab: Lab) -> Report:
    """Time of one training step of every loss, in turns within one process."""
    data = next(iter(lab.available), None)
    if data is None:
        raise InputError(datasets.missing("adressa-clean", lab.data))
    shape = {k: PAPER[k] for k in ("dimensions", "batch_size", "negatives", "sampler")}
    cell = Cell.of(
        "step-time", data, losses=",".join(LOSSES), batches=20 if lab.quick else 100,
        rounds=3 if lab.quick else 9, seed=lab.seeds[0], **shape,
    )  # fmt: skip
    found = lab.result(cell)
    base = found["bpr"]
    rows: list[Row] = [
        {"loss": name, "milliseconds a step": f"{1e3 * seconds:.3f}",
         "to BPR": f"{seconds / base:.2f}"}
        for name, seconds in sorted(found.items(), key=lambda pair: pair[1])
    ]  # fmt: skip
    table = markdown_table(list(rows[0]), [list(row.values()) for row in rows])
    said = (
        f"MF on {data}: one step of training (draw, score, loss, gradients, Adam) at batch"
        f" {shape['batch_size']}, {shape['negatives']} negatives, {shape['dimensions']} dimensions."
        " Medians over rounds in which the losses take turns. The paper prints an order only,"
        " O(B N d^2) for all; scoring and its gradient are O(B N d), and the loss itself O(B N)"
        " (O(B N log N) where it sorts the candidates). Times depend on the machine; the ratios are"
        " what to read."
    )
    figure = pictures.bars_across(
        {name: 1e3 * seconds for name, seconds in found.items()}, "milliseconds a step",
        "Time of a training step, by loss",
    )  # fmt: skip
    return Report("table-complexity", "Time per iteration", [said, table], rows, figure,
                  "Milliseconds a step of every loss")  # fmt: skip
