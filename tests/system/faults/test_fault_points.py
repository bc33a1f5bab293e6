"""kill -9 at fault points and signals at random moments, for several models and losses."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

import pytest

from tests.system.faults.runs import FaultPoint, cpu_seconds, fingerprint, start, wait_for, words
from tests.system.faults.runs import write_events as events_in

TRAININGS = [(model, loss) for model in ("mf", "lightgcn") for loss in ("llpauc", "bpr")]
POINTS = [
    FaultPoint("step", "before", 1),  # nothing is written yet
    FaultPoint("step", "after", 47),
    FaultPoint("fsync", "before", 1),  # in the write of the first checkpoint
    FaultPoint("fsync", "after", 2 + 6 * 3),  # of the fourth
    FaultPoint("rename", "before", 1),
    FaultPoint("rename", "before", 3),
    FaultPoint("rename", "after", 3),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Events, and the result of an uninterrupted training of each kind."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    events = events_in(folder / "events.csv")
    made = {}
    for model, loss in TRAININGS:
        out = folder / f"{model}-{loss}"
        with start(words(events, out, *more(model, loss))) as process:
            assert process.wait() == 0
        made[model, loss] = fingerprint(out)
    return events, made


def more(model: str, loss: str) -> tuple[str, ...]:
    """A checkpoint after about every batch, so that every fault point is reached."""
    options = ("--model", model, "--loss", loss, "--epochs", "6")
    return (*options, "--checkpoint-every", "0.001s")


@pytest.mark.parametrize("training", TRAININGS, ids=str)
def test_train_killed_at_every_fault_point_resumes_to_the_same_bits(
    training, uninterrupted, tmp_path
):
    events, made = uninterrupted
    for place, point in enumerate(POINTS):
        out = tmp_path / f"run{place}"
        arguments = words(events, out, *more(*training))
        with start(arguments, point) as process:
            process.communicate()
        assert process.returncode == -signal.SIGKILL, point
        assert not out.exists()
        with start([*arguments, "--resume"]) as process:
            stderr = process.communicate()[1]
        assert process.returncode == 0, stderr
        assert fingerprint(out) == made[training], point
    assert sorted(os.listdir(tmp_path)) == [f"run{place}" for place in range(len(POINTS))]
    print(f"{training}: {len(POINTS)} kills, {len(POINTS)} times the same bits")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_signals_at_random_moments_resume_to_the_same_bits(number, code, tmp_path):
    """Also before training, where SIGTERM ends the process as usual."""
    events = events_in(tmp_path / "events.csv")
    rng, interrupted, worst = random.Random(code), 0, [0.0, 0.0]
    for model, loss in TRAININGS:
        options = (*more(model, loss), "--epochs", "60", "--checkpoint-every", "0")
        out, whole = tmp_path / "run", tmp_path / "whole"
        with start(words(events, whole, *options)) as process:
            assert process.wait() == 0
        arguments = [*words(events, out, *options), "--resume"]
        for moment in ("Recommender(", "epoch   1", "epoch   1"):
            with start(arguments) as process:
                wait_for(process, moment)
                time.sleep(rng.uniform(0, 0.1))
                process.send_signal(number)
                before, begun = cpu_seconds(process), time.monotonic()
                stderr = process.stderr.read()
                used = cpu_seconds(process, over=True) - before
            if process.returncode == 0:  # it ended before
                break
            assert process.returncode in (code, -signal.SIGTERM), stderr
            assert "Traceback" not in stderr
            interrupted += "to continue" in stderr
            worst = [max(worst[0], used), max(worst[1], time.monotonic() - begun)]
        else:
            with start(arguments) as process:
                stderr = process.communicate()[1]
            assert process.returncode == 0, stderr
        assert fingerprint(out) == fingerprint(whole)
        shutil.rmtree(out)
        shutil.rmtree(whole)
    print(f"signal {number}: {interrupted} times in training; out after {worst[0]:.1f} s of CPU, "
          f"{worst[1]:.1f} s by the clock")  # fmt: skip
    assert interrupted >= len(TRAININGS)
    assert worst[0] < 5
    # A second interruption does not replace the run that the first one saved.
    assert set(os.listdir(tmp_path)) <= {"events.csv", "run-interrupted"}
