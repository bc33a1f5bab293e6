"""What the paper prints, as data: every figure of its tables, to stand beside ours.

Names: data sets as in `llpauc.research.paper.datasets`, losses as in `llpauc.losses.LOSSES`
(`opauc` is the paper's PAUCI(OPAUC)), tables as the targets of `llpauc reproduce`.

- Figures are kept as printed, odd ones too: 0.00014 and 0.00016 as deviations (`table2`,
  softmax_v on Yelp; `table-ltr`, ARP-Loss2 on Yelp) look like slips for 0.0014 and 0.0016.
- `table-ltr` names no backbone. Its LLPAUC rows are those of MF in `table1` and `table2`, so MF.
- PAUCI stands in the clean MF table only, CCL in the clean ones, TCE and RCE in the noise ones.
- The counts of users and items include one padding row each: the files of Adressa have 87,416 and
  2,221. Adressa's sparsity of 99.89 % is cut, not rounded (99.896 %).
- The paper prints no size of MovieLens-100k, and of time an O() only: there is no such table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Figure(NamedTuple):
    """Mean and standard deviation over three seeds of Recall@20 and NDCG@20."""

    recall: float
    recall_sd: float
    ndcg: float
    ndcg_sd: float


class Key(NamedTuple):
    """Where a figure stands."""

    table: str
    data: str
    backbone: str
    loss: str


class Sizes(NamedTuple):
    """A row of the table of data sets; sparsity as a share."""

    users: int
    items: int
    interactions: int
    sparsity: float


_CLEAN = ("adressa-clean", "yelp-clean", "amazon-book-clean")
_NOISE = ("adressa-noise", "yelp-noise", "amazon-book-noise")
_ML_100K = ("ml-100k-clean", "ml-100k-noise")

# A row: the loss, then recall, its deviation, ndcg, its deviation for every data set of the table.
_CLEAN_MF = """
bce        0.1573 0.0251 0.0793 0.0181 0.0814 0.0004 0.0448 0.0005 0.0663 0.0006 0.0363 0.0002
bpr        0.1800 0.0204 0.0991 0.0144 0.0647 0.0005 0.0358 0.0002 0.0695 0.0001 0.0384 0.0007
sce        0.2001 0.0031 0.1057 0.0015 0.0762 0.0007 0.0425 0.0003 0.0894 0.0012 0.0507 0.0009
ccl        0.1956 0.0110 0.0911 0.0028 0.0842 0.0002 0.0486 0.0000 0.0944 0.0001 0.0551 0.0008
dns        0.1877 0.0025 0.0965 0.0010 0.0856 0.0005 0.0489 0.0002 0.1012 0.0006 0.0580 0.0003
softmax_v  0.1849 0.0105 0.0949 0.0088 0.0824 0.0008 0.0470 0.0004 0.1024 0.0001 0.0592 0.0001
opauc      0.2021 0.0014 0.1086 0.0007 0.0821 0.0004 0.0479 0.0003 0.0991 0.0001 0.0549 0.0002
llpauc     0.2166 0.0022 0.1214 0.0009 0.0884 0.0005 0.0505 0.0003 0.1076 0.0007 0.0612 0.0004
"""
_CLEAN_LIGHTGCN = """
bce        0.1897 0.0004 0.0935 0.0002 0.0905 0.0003 0.0517 0.0004 0.1149 0.0003 0.0660 0.0003
bpr        0.1737 0.0006 0.0923 0.0004 0.0802 0.0005 0.0453 0.0003 0.0922 0.0002 0.0520 0.0001
sce        0.1729 0.0008 0.0960 0.0007 0.0890 0.0005 0.0506 0.0004 0.1115 0.0004 0.0640 0.0002
ccl        0.1926 0.0008 0.1014 0.0009 0.0915 0.0006 0.0528 0.0005 0.1007 0.0000 0.0614 0.0001
dns        0.1830 0.0035 0.0952 0.0006 0.0962 0.0003 0.0550 0.0002 0.1056 0.0004 0.0597 0.0002
softmax_v  0.1923 0.0107 0.1056 0.0117 0.0975 0.0001 0.0567 0.0000 0.1128 0.0007 0.0724 0.0006
llpauc     0.2311 0.0004 0.1312 0.0002 0.1002 0.0003 0.0573 0.0004 0.1201 0.0003 0.0684 0.0003
"""
_NOISE_MF = """
bce        0.1551 0.0025 0.0762 0.0007 0.0799 0.0014 0.0438 0.0009 0.0911 0.0009 0.0515 0.0009
bpr        0.1666 0.0215 0.0880 0.0139 0.0626 0.0014 0.0341 0.0009 0.0663 0.0008 0.0363 0.0006
sce        0.1938 0.0010 0.1062 0.0007 0.0738 0.0003 0.0406 0.0009 0.0840 0.0010 0.0470 0.0011
tce        0.1465 0.0022 0.0862 0.0007 0.0826 0.0008 0.0456 0.0005 0.0906 0.0018 0.0514 0.0011
rce        0.1617 0.0329 0.0819 0.0221 0.0818 0.0009 0.0452 0.0005 0.0965 0.0017 0.0549 0.0015
dns        0.1802 0.0125 0.0847 0.0097 0.0844 0.0016 0.0477 0.0008 0.0966 0.0003 0.0543 0.0003
softmax_v  0.1801 0.0086 0.0922 0.0054 0.0816 0.00014 0.0452 0.0005 0.0954 0.0002 0.0536 0.0001
llpauc     0.2127 0.0014 0.1189 0.0009 0.0847 0.0007 0.0481 0.0001 0.0998 0.0008 0.0566 0.0006
"""
_NOISE_LIGHTGCN = """
bce        0.1844 0.0005 0.0874 0.0002 0.0888 0.0003 0.0497 0.0001 0.1095 0.0003 0.0620 0.0001
bpr        0.1661 0.0007 0.0914 0.0006 0.0800 0.0005 0.0448 0.0002 0.0884 0.0005 0.0492 0.0002
sce        0.1732 0.0008 0.0936 0.0005 0.0916 0.0003 0.0514 0.0003 0.1068 0.0003 0.0604 0.0002
tce        0.2184 0.0005 0.1187 0.0005 0.0923 0.0004 0.0522 0.0003 0.1085 0.0004 0.0611 0.0002
rce        0.2204 0.0007 0.1219 0.0007 0.0941 0.0006 0.0536 0.0008 0.1126 0.0004 0.0639 0.0005
dns        0.1701 0.0017 0.0889 0.0011 0.0948 0.0002 0.0536 0.0001 0.1012 0.0002 0.0570 0.0001
softmax_v  0.1815 0.0047 0.0939 0.0084 0.0957 0.0002 0.0549 0.0002 0.1076 0.0003 0.0682 0.0004
llpauc     0.2228 0.0006 0.1231 0.0005 0.0981 0.0007 0.0558 0.0004 0.1165 0.0007 0.0655 0.0005
"""
_ML_100K_MF = """
bce        0.1994 0.0044 0.1343 0.0036 0.1766 0.002 0.1097 0.0026
bpr        0.1901 0.0013 0.128 0.0004 0.1662 0.0035 0.1031 0.0032
sce        0.2027 0.0035 0.1371 0.0024 0.1783 0.0038 0.1099 0.0041
dns        0.1983 0.0017 0.1375 0.0012 0.1779 0.0044 0.1129 0.0034
softmax_v  0.2016 0.0018 0.1398 0.0009 0.1728 0.0039 0.109 0.0026
llpauc     0.2046 0.0005 0.1411 0.0021 0.1815 0.0001 0.1175 0.0011
"""
_ML_100K_LIGHTGCN = """
bce        0.2032 0.0039 0.1401 0.0011 0.1814 0.0026 0.1126 0.0022
bpr        0.1958 0.001 0.1334 0.0005 0.1665 0.0021 0.1041 0.0012
sce        0.206 0.0041 0.1404 0.0025 0.1804 0.0035 0.1106 0.0015
dns        0.2051 0.0008 0.1407 0.0012 0.1805 0.0022 0.1142 0.001
softmax_v  0.2043 0.0025 0.1387 0.0009 0.1814 0.0031 0.1134 0.0022
llpauc     0.2114 0.0006 0.142 0.0011 0.1832 0.0026 0.1158 0.0012
"""
_LTR_ADRESSA = """
lambdarank 0.1997 0.001 0.1093 0.0032 0.1731 0.0032 0.0936 0.0018
ndcg_loss1 0.1866 0.0049 0.1009 0.0037 0.1774 0.0006 0.0948 0.002
ndcg_loss2 0.2002 0.0031 0.1053 0.0018 0.1854 0.0069 0.0955 0.0037
arp_loss2  0.1957 0.0009 0.1089 0.0008 0.1759 0.0008 0.0946 0.0016
llpauc     0.2166 0.0022 0.1214 0.0009 0.2127 0.0014 0.1189 0.0009
"""
_LTR_YELP = """
lambdarank 0.0716 0.0015 0.0396 0.0009 0.0695 0.0001 0.0379 0.0001
ndcg_loss1 0.081 0.0011 0.0450 0.0006 0.0806 0.0011 0.0447 0.0004
ndcg_loss2 0.0784 0.0012 0.0442 0.0009 0.0798 0.0006 0.0449 0.0004
arp_loss2  0.065 0.00016 0.0356 0.0009 0.0622 0.0023 0.0340 0.0011
llpauc     0.0884 0.0005 0.0505 0.0003 0.0847 0.0007 0.0481 0.0001
"""

_BLOCKS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("table1", "mf", _CLEAN, _CLEAN_MF),
    ("table1", "lightgcn", _CLEAN, _CLEAN_LIGHTGCN),
    ("table2", "mf", _NOISE, _NOISE_MF),
    ("table2", "lightgcn", _NOISE, _NOISE_LIGHTGCN),
    ("table-ml100k", "mf", _ML_100K, _ML_100K_MF),
    ("table-ml100k", "lightgcn", _ML_100K, _ML_100K_LIGHTGCN),
    ("table-ltr", "mf", ("adressa-clean", "adressa-noise"), _LTR_ADRESSA),
    ("table-ltr", "mf", ("yelp-clean", "yelp-noise"), _LTR_YELP),
)


def _figures() -> dict[Key, Figure]:
    figures = {}
    for table, backbone, columns, block in _BLOCKS:
        for line in block.strip().splitlines():
            loss, *numbers = line.split()
            for place, data in enumerate(columns):
                of_data = numbers[4 * place : 4 * place + 4]
                figures[Key(table, data, backbone, loss)] = Figure(*map(float, of_data))
    return figures


PUBLISHED: Mapping[Key, Figure] = MappingProxyType(_figures())

SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        "adressa-clean": Sizes(87_417, 2_222, 201_128, 0.9989),
        "adressa-noise": Sizes(122_578, 3_371, 201_128, 0.9995),
        "yelp-clean": Sizes(45_542, 56_876, 1_752_118, 0.9993),
        "yelp-noise": Sizes(45_549, 57_268, 1_752_118, 0.9993),
        "amazon-book-clean": Sizes(80_452, 98_649, 3_113_576, 0.9996),
        "amazon-book-noise": Sizes(80_458, 98_657, 3_113_576, 0.9996),
    }
)


def published(table: str, data: str, backbone: str, loss: str) -> Figure | None:
    """The printed figure, or None where the paper's table has no such row.

    >>> published("table1", "adressa-clean", "mf", "llpauc")
    Figure(recall=0.2166, recall_sd=0.0022, ndcg=0.1214, ndcg_sd=0.0009)
    >>> published("table1", "adressa-clean", "lightgcn", "opauc")
    """
    return PUBLISHED.get(Key(table, data, backbone, loss))
