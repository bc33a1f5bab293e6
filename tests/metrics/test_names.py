"""Parsing of metric names: accepted names, errors, round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llpauc.errors import InputError
from llpauc.metrics import METRIC_NAMES, TOPK_METRICS, Metric, parse_metric


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("recall@20", Metric("recall", k=20)),
        ("precision@5", Metric("precision", k=5)),
        (" NDCG @ 20 ", Metric("ndcg", k=20)),
        ("mrr@10", Metric("mrr", k=10)),
        ("map@50", Metric("map", k=50)),
        ("hit@020", Metric("hit", k=20)),
        ("auc", Metric("auc", alpha=1.0, beta=1.0)),
        ("opauc(0.1)", Metric("opauc", alpha=1.0, beta=0.1)),
        ("LLPAUC(0.7, 1)", Metric("llpauc", alpha=0.7, beta=1.0)),
        ("llpauc(.7,1e-3)", Metric("llpauc", alpha=0.7, beta=0.001)),
    ],
)
def test_parse_metric_reads_names(name: str, metric: Metric) -> None:
    assert parse_metric(name) == metric


fractions = st.floats(0, 1, exclude_min=True)
metrics = st.one_of(
    st.builds(Metric, st.sampled_from(sorted(TOPK_METRICS)), k=st.integers(1, 10**9 - 1)),
    st.builds(Metric, st.just("opauc"), alpha=st.just(1.0), beta=fractions),
    st.builds(Metric, st.just("llpauc"), alpha=fractions, beta=fractions),
    st.just(Metric("auc", alpha=1.0, beta=1.0)),
)


@given(metric=metrics)
def test_parse_metric_reads_back_metric_name(metric: Metric) -> None:
    assert parse_metric(metric.name) == metric


def test_metric_name_is_canonical() -> None:
    assert parse_metric("LLPAUC(0.70, 1.0)").name == "llpauc(0.7,1)"
    assert parse_metric("Recall@020").name == "recall@20"


def test_metric_names_lists_every_metric() -> None:
    assert METRIC_NAMES == (
        "recall@K",
        "precision@K",
        "ndcg@K",
        "hit@K",
        "mrr@K",
        "map@K",
        "auc",
        "opauc(BETA)",
        "llpauc(ALPHA,BETA)",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recal@20", r"unknown metric 'recal@20'; choose one of: recall@K, .*llpauc\(ALPHA,BETA\)"),
        ("", "unknown metric ''"),
        ("@20", "unknown metric '@20'"),
        ("recall@20)", "whole number"),
        ("recall(20)", r"unknown metric 'recall\(20\)'"),
        ("llpauc@20", "unknown metric 'llpauc@20'"),
        ("recall", "metric 'recall' needs a rank, as in recall@20"),
        ("recall@", "whole number of at least 1"),
        ("recall@0", "the rank in 'recall@0' must be a whole number of at least 1"),
        ("recall@-5", "whole number of at least 1"),
        ("ndcg@2.5", "whole number of at least 1"),
        ("auc(0.5)", "must be written auc"),
        ("opauc", r"must be written opauc\(beta\)"),
        ("llpauc(0.7)", r"must be written llpauc\(alpha,beta\)"),
        ("llpauc(1.1,0.1)", r"alpha of 'llpauc\(1.1,0.1\)' must be in \(0, 1\], got 1.1"),
        ("llpauc(0.7,0)", r"beta of 'llpauc\(0.7,0\)' must be in \(0, 1\], got 0.0"),
        ("llpauc(0.7,nan)", r"must be in \(0, 1\], got nan"),
        ("llpauc(0.7,x)", "must be a number, got 'x'"),
    ],
)
def test_parse_metric_bad_name_raises(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_metric(name)
    assert "\n" not in str(caught.value)


def test_parse_metric_rank_with_too_many_digits_raises():
    with pytest.raises(InputError, match="more than 9 digits"):
        parse_metric("ndcg@99999999999999999999")
