"""Event weights and types, filters and findings on the command line."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from llpauc.cli import main
from tests.datasets import shop_log

TYPES = ["--event-type", "event_type", "--event-weights", "view=1,cart=3,purchase=10"]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with shop.csv, in which bots and errors are hidden."""
    monkeypatch.chdir(tmp_path)
    log = shop_log(n_users=120)
    bot = pd.DataFrame({"user": 999, "item": [n % 400 for n in range(2500)], "event_type": "view"})
    bot["timestamp"] = 1.7e9 + bot.index * 60
    rare = pd.DataFrame({"user": 1, "item": range(1000, 1200), "event_type": "view"})
    rare["timestamp"] = 1.7e9
    odd = log.head(3).assign(timestamp=[4e9, 12.0, log.timestamp[2]])
    # Events of two months are missing.
    log.loc[log.timestamp > 1.7e9 + 50 * 86400, "timestamp"] += 60 * 86400
    pd.concat([log, bot, rare, odd]).to_csv("shop.csv", index=False)
    log.to_csv("log.csv", index=False)
    return tmp_path


def result_of(capsys, *words):
    assert main([*map(str, words), "--json"]) in (0, None)
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(list(map(str, words))))
    assert ended.value.code not in (0, None)
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_data_inspect_names_findings_with_their_options(shop, capsys):
    odd = "\n".join(result_of(capsys, "data", "inspect", "shop.csv")["odd"])
    assert "1 users may be bots or test accounts, such as '999': 2,500 events" in odd
    assert "100% of the items" not in odd
    assert "(--max-events-per-user " in odd
    assert "have one event, from which little can be learned (--min-item-events 5)" in odd
    assert "1 events are in the future, the last on 2096-10-02 07:06 (--until " in odd
    assert "1 timestamps are not dates, such as 12 (--since 2023-11-14)" in odd
    assert "are equal to another in every column (--drop-duplicates)" in odd
    assert "60 days; every other gap is at most" in odd


def test_data_clean_treats_the_findings_of_inspect(shop, capsys):
    options = ["--max-events-per-user", 300, "--min-item-events", 5, "--since", "2020-01-01"]
    options += ["--until", "2026-01-01", "--drop-duplicates"]
    report = result_of(
        capsys, "data", "clean", "shop.csv", "clean.csv", *options, "--event-type", "event_type",
        "--event-weights", "view=1,cart=3,purchase=10",
    )  # fmt: skip
    assert report["dropped"]["events of users with more than 300 events"] == 2500
    assert report == json.loads((shop / "clean.csv.report.json").read_text())
    left = pd.read_csv("clean.csv")
    assert report["events left"] == len(left)
    assert report["rows read"] == len(left) + sum(report["dropped"].values())
    assert set(left.event_type) == {"view", "cart", "purchase"}
    findings = result_of(capsys, "data", "inspect", "clean.csv")["odd"]
    assert not [text for text in findings if "bots" in text or "future" in text or "one ev" in text]
    message = error_of(capsys, "data", "clean", "shop.csv", "again.csv")
    assert "nothing to drop; give an option such as --max-events-per-user 2000" in message


def test_evaluate_exclude_and_relevant_are_in_the_report(shop, capsys):
    words = ["evaluate", "log.csv", "--models", "itemknn", *TYPES, "--relevant", "purchase"]
    bought, everything = (result_of(capsys, *words, *more) for more in ([], ["--exclude", "all"]))
    assert (bought["exclude"], bought["relevant"]) == ("purchase", "purchase")
    assert everything["exclude"] == "all"
    recalls = [r["results"]["itemknn"]["all"]["recall@20"] for r in (bought, everything)]
    assert recalls[0] > recalls[1]
    plain = result_of(capsys, "evaluate", "log.csv", "--models", "popularity")
    assert (plain["exclude"], plain["relevant"]) == ("all", "all")


def test_train_prepare_recommend_and_update_use_event_types(shop, capsys):
    quick = ["--recipe", "none", "--epochs", 1, "--dimensions", 4, "--negatives", 5]
    main(["data", "prepare", "log.csv", "--out", "set", *TYPES])
    main(["train", "set", "--out", "of-set", *map(str, quick)])
    config = 'event_type = "event_type"\nevent_weights = "view=1,cart=3,purchase=10"\n'
    (shop / "types.toml").write_text(config)
    main(["train", "log.csv", "--config", "types.toml", "--out", "run", *map(str, quick)])
    capsys.readouterr()
    log = pd.read_csv("log.csv")
    bought = set(log[(log.user == 5) & (log.event_type == "purchase")].item.astype(str))
    seen = set(log[log.user == 5].item.astype(str))
    for run, exclude, left_out in (("run", [], bought), ("run", ["--exclude", "all"], seen)):
        (entry,) = result_of(capsys, "recommend", run, "--users", 5, "-k", 400, *exclude)
        assert {item["item"] for item in entry["items"]} == set(log.item.astype(str)) - left_out
    (entry,) = result_of(capsys, "recommend", "of-set", "--users", 5, "-k", 400)
    assert not bought & {item["item"] for item in entry["items"]} or len(entry["items"]) < 400
    # An update reads the new events with the columns of the run.
    log.head(50).to_csv("new.csv", index=False)
    updated = result_of(capsys, "update", "run", "new.csv", "--epochs", 0)
    assert updated["new pairs"] == 50


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "log.csv", *TYPES, "--relevant", "buy"], "--relevant: unknown event type"),
        (
            ["evaluate", "log.csv", "--exclude", "buy"],
            "unknown event type 'buy'; one of: all",
        ),
        (
            ["evaluate", "log.csv", "--weight", "event_type"],
            "weight 'view' is not a number",
        ),
        (["evaluate", "log.csv", *TYPES[:2], "--event-weights", "view=1"], "has no weight; add it"),
        (["data", "prepare", "log.csv", *TYPES, "--exclude", "all"], "--exclude is for"),
        (["evaluate", "log.csv", "--since", "never"], "since must be a date such as 2026-01-31"),
    ],
)
def test_bad_event_options_are_one_line(shop, capsys, words, message):
    assert message in error_of(capsys, *words)
