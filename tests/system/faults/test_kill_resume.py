"""kill -9 at random moments of real trainings; part of `make faults`, as it takes minutes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.system.faults.runs import fingerprint, start, wait_for, words, write_events

KILLS = 5  # for each of four trainings


@pytest.mark.parametrize("loss", ["llpauc", "bpr"])
@pytest.mark.parametrize("model", ["mf", "lightgcn"])
def test_train_killed_at_random_moments_resumes_to_the_same_bits(model, loss, tmp_path):
    events = write_events(tmp_path / "events.csv", users=300)
    more = ("--model", model, "--loss", loss, "--epochs", "12")
    with start(words(events, tmp_path / "whole", *more)) as process:
        wait_for(process, "Recommender(")
        begun = time.monotonic()
        process.communicate()
    assert process.returncode == 0
    lasts = time.monotonic() - begun
    rng = random.Random(f"{model} {loss}")
    arguments = words(events, tmp_path / "run", *more, "--resume")
    whole, run, positions, kills = fingerprint(tmp_path / "whole"), tmp_path / "run", [], 0
    while kills < KILLS:
        with start(arguments) as process:
            wait_for(process, "Recommender(")
            begun = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, lasts))
            process.kill()
            positions += resumed_from(process.communicate()[1])
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0:  # it ended before the kill: start again
            lasts = min(lasts, time.monotonic() - begun)  # the machine may be less busy now
            assert fingerprint(run) == whole
            shutil.rmtree(run)
    with start(arguments) as process:
        err = process.communicate()[1]
    assert process.returncode == 0, err
    positions += resumed_from(err)
    print(f"{model} {loss}: {kills} kills, {lasts:.1f} s uninterrupted; resumed from {positions}")
    assert fingerprint(run) == whole
    assert positions  # else nothing was tested
    assert not (tmp_path / "run.checkpoint").exists()


def resumed_from(stderr):
    return [line.split(": ")[1] for line in stderr.splitlines() if line.startswith("resuming from")]
