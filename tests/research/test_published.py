"""The published values against the paper: its LaTeX tables are parsed and compared."""

from __future__ import annotations

import re

import pytest

from llpauc.losses import LOSSES
from llpauc.research.datasets import PAPER_DATASETS
from llpauc.research.paper import PAPER, PUBLISHED
from tests.datasets import SHARED

LABELS = {
    "table1": "main_table_clean",
    "table2": "main_table_noise",
    "table-ml100k": "additional_table_clean_noise",
    "table-ltr": "table_learning_to_rannk",
}
FAMILIES = {"Adressa": "adressa", "Yelp": "yelp", "Amazon": "amazon-book"}
METHODS = {
    "BCE": "bce", "BPR": "bpr", "SCE": "sce", "CCL": "ccl", "DNS": "dns", "Softmax": "softmax_v",
    "PAUCI": "opauc", "TCE": "tce", "RCE": "rce", "Lambdarank": "lambdarank", "LLPAUC": "llpauc",
    "NDCG-Loss1": "ndcg_loss1", "NDCG-Loss2": "ndcg_loss2", "ARP-Loss2": "arp_loss2",
}  # fmt: skip


@pytest.fixture(scope="module")
def paper() -> str:
    path = SHARED.parent / "paper" / "llpauc-www2024.tex.txt"
    if not path.exists():
        pytest.skip("the text of the paper is not available")
    return path.read_text(encoding="utf-8")


def rows_of(paper: str, label: str) -> list[list[str]]:
    """The cells of each row of the table with this label."""
    rest = paper[paper.index(f"\\label{{{label}}}") :]
    body = rest[rest.index("\\begin{tabular}") : rest.index("\\end{tabular}")]
    return [[cell.strip() for cell in row.split("&")] for row in body.split("\\\\")]


def column_of(table: str, block: str, head: str) -> tuple[str, str]:
    """Data set and backbone of a block and a column."""
    if table in ("table1", "table2"):
        variant = "clean" if table == "table1" else "noise"
        return f"{FAMILIES[head]}-{variant}", block.lower()
    if table == "table-ml100k":
        return f"ml-100k-{head.lower()}", block.lower()
    return f"{FAMILIES[block]}-{head.lower()}", "mf"


def parse_tables(paper: str) -> dict[tuple[str, ...], tuple[float, ...]]:
    values: dict[tuple[str, ...], tuple[float, ...]] = {}
    for table, label in LABELS.items():
        block, heads = "", []
        for cells in rows_of(paper, label):
            text = " & ".join(cells)
            found = re.search(r"\\multirow\{\d+\}\{\*\}\{(\w+)\}", cells[0])
            if found:
                block = found[1]
                heads = re.findall(r"\\multicolumn\{2\}\{c\}\{(\w+)\}", text)
            if len(cells) < 2 or not re.search(r"\d\.\d", text):
                continue
            (method,) = [
                name for name in METHODS if re.match(rf"{name}(?![\w-])|{name}\\_", cells[1])
            ]
            assert len(cells) == 2 + 2 * len(heads), cells
            for place, head in enumerate(heads):
                pair = " ".join(cells[2 + 2 * place : 4 + 2 * place])
                numbers = tuple(float(number) for number in re.findall(r"\d\.\d+", pair))
                assert len(numbers) == 4, pair
                data, backbone = column_of(table, block, head)
                values[table, data, backbone, METHODS[method]] = numbers
    return values


def test_published_values_equal_the_latex_tables(paper):
    parsed = parse_tables(paper)
    assert len(parsed) == 3 * (8 + 7 + 8 + 8) + 2 * (6 + 6) + 2 * (5 + 5)
    assert {key: tuple(value) for key, value in PUBLISHED.items()} == parsed


def test_published_sizes_equal_the_latex_table(paper):
    read = {}
    for cells in rows_of(paper, "tab:dataset"):
        found = re.search(r"(Adressa|Yelp|Amazon)\\_(clean|noise)$", cells[0])
        if found:
            users, items, interactions = (int(cell.replace(",", "")) for cell in cells[1:4])
            sparsity = float(cells[4].removesuffix("\\%")) / 100
            read[f"{FAMILIES[found[1]]}-{found[2]}"] = (users, items, interactions, sparsity)
    assert len(read) == 6
    for name, (*counts, sparsity) in read.items():
        assert PAPER["sizes"][name][:3] == counts
        assert PAPER["sizes"][name][3] == pytest.approx(sparsity, abs=1e-9)
    assert set(PAPER["sizes"]) == set(read)


def test_published_names_are_those_of_the_library():
    assert {loss for _, _, _, loss in PUBLISHED} <= set(LOSSES)
    assert {data for _, data, _, _ in PUBLISHED} == set(PAPER_DATASETS)
    assert set(PAPER["sizes"]) < set(PAPER_DATASETS)


def test_published_learning_to_rank_table_has_the_values_of_mf():
    """It is not printed, but the LLPAUC rows are those of MF."""
    for data, table in [("adressa-clean", "table1"), ("adressa-noise", "table2"),
                        ("yelp-clean", "table1"), ("yelp-noise", "table2")]:  # fmt: skip
        same = PUBLISHED["table-ltr", data, "mf", "llpauc"]
        assert same == PUBLISHED[table, data, "mf", "llpauc"]
        assert same != PUBLISHED[table, data, "lightgcn", "llpauc"]


def test_published_has_no_rows_that_the_paper_leaves_out():
    assert ("table2", "adressa-noise", "mf", "ccl") not in PUBLISHED
    assert ("table1", "adressa-noise", "mf", "bpr") not in PUBLISHED
    assert ("table1", "adressa-clean", "lightgcn", "opauc") not in PUBLISHED


def test_published_value_of_llpauc_on_adressa():
    value = PUBLISHED["table1", "adressa-clean", "mf", "llpauc"]
    assert value == (0.2166, 0.0022, 0.1214, 0.0009)
