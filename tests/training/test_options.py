"""The options of training, the names of the samplers and the JSON of epochs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from llpauc.options import options_of
from llpauc.training import SAMPLERS, Epoch, History, TrainingOptions


def test_training_options_import_neither_torch_nor_numba():
    code = (
        "import sys; from llpauc.training import SAMPLERS, TrainingOptions; list(SAMPLERS);"
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_training_options_have_help_and_the_names_of_the_samplers():
    options = options_of(TrainingOptions)
    assert all(option.help for option in options.values())
    assert options["sampler"].choices == tuple(SAMPLERS)
    assert set(options["sampler"].search.values) <= set(SAMPLERS)


@pytest.mark.parametrize(
    ("former", "name"), [("all", "all-items"), ("uniform-all", "uniform-with-positives")]
)
def test_training_options_former_names_of_samplers(former, name):
    assert TrainingOptions(sampler=former).sampler == name
    assert former not in list(SAMPLERS)


def test_history_from_json_reads_diagnostics_and_their_former_name():
    history = History((Epoch(1, 0.5, 2.0, 10, {"auc": 0.7}),), 1, 0.0, "epochs")
    saved = json.loads(json.dumps(dataclasses.asdict(history)))
    assert History.from_json(saved) == history
    saved["epochs"][0]["figures"] = saved["epochs"][0].pop("diagnostics")
    assert History.from_json(saved) == history
