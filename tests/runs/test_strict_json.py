"""Values that are written down: made of Python's own types, finite, and readable by every reader."""

import enum
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from ludus.runs.folder import RunFolder, read_config, read_identity
from ludus.runs.strict_json import strict, strict_json


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.str_("x"), "x"), (np.array(2.0), 2.0),
        (jnp.asarray(7), 7), (Colour.RED, 1), (2**70, 2**70), (np.float64("nan"), None), (-math.inf, None),
        ((1, [np.float32("inf"), {2: "\udcff"}]), [1, [None, {"2": "?"}]]), (None, None), (True, True),
        (RunFolder, str(RunFolder)), ({"\ud800": 1}, {"?": 1}),
    ],
)  # fmt: skip
def test_values_become_plain_and_finite(value, plain):
    made = strict(value)
    assert made == plain and type(made) is type(plain)
    assert json.loads(strict_json(value)) == plain


def test_what_is_not_finite_can_be_kept_or_named():
    assert strict({"limit": np.float32("inf")}, not_finite=float) == {"limit": math.inf}
    assert strict([math.nan, -math.inf], not_finite=str) == ["nan", "-inf"]


def test_a_run_folder_holds_no_number_that_json_does_not_know(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_config({"limit": math.inf, "rate": np.float32(0.5)})
    folder.write_identity(best=math.nan, seed=np.int64(7))
    assert read_config(folder.path) == {"limit": math.inf, "rate": 0.5}
    identity = read_identity(folder.path)
    assert identity["best"] is None and identity["seed"] == 7
    json.loads((folder.path / "run.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    folder.close()
