"""A policy as a model of MLflow's, for every kind of space."""

import subprocess
import sys

import pytest
from places import SUPPORT

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import jax, mlflow, numpy as np
from learned_cases import space_case
from ludus.export.mlflow_model import write_model
from ludus.algorithms.policy import save_policy
from ludus.spaces import flatten, leaves
from ludus.export.verification import sampled_observations

folder = Path(sys.argv[1])
(folder / "config.yaml").write_text("env: none")
for i, name in enumerate(sys.argv[2:]):
    policy = space_case(name)[0]
    save_policy(policy, folder / f"{i}.safetensors")
    write_model(folder / f"{i}.safetensors", folder / "config.yaml", folder / str(i), "run", "place")
    model = mlflow.pyfunc.load_model(str(folder / str(i)))
    obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sampled_observations(policy).obs)
    expected = flatten(policy.spec.action_space, policy(obs))
    space = policy.spec.observation_space
    parts = {n: np.asarray(x) for (n, _), x in zip(leaves(space), flatten(space, obs), strict=True)}
    found = model.predict(parts.get("", parts))
    names = [n for n, _ in leaves(policy.spec.action_space)]
    for part, right in zip([found] if names == [""] else [found[n] for n in names], expected, strict=True):
        np.testing.assert_array_equal(part, right)
    example = model.input_example
    assert len(model.predict(example) if names == [""] else model.predict(example)[names[0]]) == 1
    assert len(model.metadata.signature.inputs.inputs) == len(parts)
    print("fine", name)
"""
NAMES = ("discrete with a start", "dict", "nested", "box of float64, multi-discrete actions", "bytes, unbounded box")


@pytest.mark.requirement("S1.26")
def test_a_model_answers_as_the_policy_does_whatever_the_spaces(tmp_path):
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), *NAMES]
    done = subprocess.run(words, cwd=SUPPORT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"fine {name}" for name in NAMES], done.stderr[-3000:]
