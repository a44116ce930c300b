"""Several devices do the work of one: the same numbers but for rounding, each with its share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from mesh_runs import CASES, COUNTS, MINIBATCH

import ludus
from ludus.runs.folder import read_config, read_identity
from ludus.training.distributed import mesh
from ludus.types import LudusError

SUPPORT = Path(__file__).parents[2] / "support"
EPSILON = 1e-5
NARROW = 24
"""Matrix products may have so many columns on any number of devices."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What runs on one and on several devices came to, in one process that has eight."""
    words = [sys.executable, "-W", "error", str(SUPPORT / "mesh_runs.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.requirement("S2.7")
@pytest.mark.requirement("S0.23")
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_is_the_same_on_any_number_of_devices(found, case):
    for count in COUNTS.get(case, (4,)):
        on = found[f"agreement {case}"][str(count)]
        assert on["error"] < EPSILON
        assert on["carry"] < EPSILON
        assert on["counts"]  # D2.9: environments, steps and episodes of all devices count


@pytest.mark.slow
@pytest.mark.requirement("S2.7")
@pytest.mark.parametrize("case", CASES)
def test_parameters_optimiser_and_statistics_are_the_same_on_every_device_bit_by_bit(found, case):
    for count in COUNTS.get(case, (4,)):
        on = found[f"agreement {case}"][str(count)]
        assert on["copies"] > 10
        assert on["equal"]


@pytest.mark.slow
@pytest.mark.requirement("S2.16")
@pytest.mark.parametrize("case", CASES)
def test_each_device_has_its_share_of_environments_replay_and_arithmetic(found, case):
    for count in COUNTS.get(case, (4,)):
        on = found[f"agreement {case}"][str(count)]
        assert on["shares"] == [count]
        assert on["devices"] == [count]
        assert (on["rings"] > 0) == case.startswith("sac")
        if "products" in on:
            one = max(found[f"agreement {case}"]["1"]["products"])
            assert one > NARROW
            assert max(on["products"]) <= max(one // count, NARROW)


@pytest.mark.slow
@pytest.mark.requirement("S2.16")
def test_each_device_judges_its_own_pictures(found):
    on = found["pictures"]
    assert on["pictures"]["1"] >= 64
    assert on["pictures"]["4"] == on["pictures"]["1"] // 4
    assert on["error"] < EPSILON


@pytest.mark.slow
def test_a_run_on_several_devices_is_one_program(found):
    assert found["one program"]["first"] > 0
    assert found["one program"]["more"] == 0


@pytest.mark.slow
@pytest.mark.requirement("S2.16")
def test_in_a_gradient_step_devices_say_the_advantages_and_one_vector_to_each_other(found):
    shapes = [words.split("{")[0] for words in found["one program"]["words"]]
    assert len(shapes) == 2
    assert f"f32[{MINIBATCH}]" in shapes
    assert not any(shape.startswith("(") for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["resumes ppo", "resumes sac"])
def test_a_run_goes_on_exactly_on_as_many_devices_and_nearly_on_others(found, case):
    on = found[case]
    assert on["same"] == []
    assert on["journal"]
    assert on["levels"] == {"same": ["exact"], "elastic": ["devices", "devices"], "one": ["exact", "exact"]}
    assert 0 < on["elastic"] < 0.01
    assert on["named"] == 8
    assert on["devices"] == [8]
    assert on["equal"]
    assert on["shares"] == [8]


@pytest.mark.slow
def test_learners_pass_between_one_device_and_several(found):
    assert found["handed over"]["returns"] == 4
    assert found["handed over"]["equal"]
    assert found["handed over"]["devices"] == [4]


@pytest.mark.slow
def test_what_cannot_be_shared_out_is_one_line(found):
    assert found["refusals"] == [
        "devices=16: JAX has 8 cpu devices here and runs already; before it starts, set "
        "XLA_FLAGS=--xla_force_host_platform_device_count=16",
        "devices=1000: a CPU shows itself as 256 devices at most",
        "devices=8: must divide num_envs=12",
        "algorithm.minibatch_size=12: 8 devices cannot share its transitions evenly; give a multiple of 8",
        "devices=0: must be auto or an integer of at least 1",
        "devices=all: must be auto or an integer of at least 1",
        "algorithm.batch_size=36: 8 devices cannot share it evenly; give a multiple of 8",
        "algorithm.replay_size=1000: 8 devices cannot share it evenly; give a multiple of 64",
        "algorithm.minibatch_size=64: 8 devices cannot share its segments of 16 steps evenly; give a multiple of 128",
    ]


def test_more_devices_than_there_are_is_one_line(run):
    assert jax.device_count() == 1  # JAX runs: or this process would show three from now on
    code, _, said = run(
        "train",
        "env=CartPole-v1",
        "devices=3",
        "num_envs=24",
        "preset=null",
        "algorithm.batch_size=1200",
        "total_steps=100",
        "verbose=false",
    )
    assert code == 2
    assert said.count("\n") == 1
    assert "devices=3: JAX has 1 cpu device here and runs already" in said


class Accelerator:
    """A device as `choose` sees it."""

    platform = "gpu"


@pytest.mark.parametrize(
    ("num_envs", "minibatch", "expected"), [(4096, 4096, 4), (4094, 4094, 1), (4096, 4098, 1), (64, 1024, 1)]
)
def test_all_accelerators_are_taken_where_the_work_is_great_and_can_be_shared(
    monkeypatch, num_envs, minibatch, expected
):
    monkeypatch.setattr(mesh.jax, "devices", lambda: [Accelerator() for _ in range(4)])
    monkeypatch.setattr(mesh, "_meshed", len)
    ppo = ludus.PPO(batch_size=num_envs * 32, minibatch_size=minibatch, network=ludus.MLP((256, 256)))
    env = ludus.make_env("CartPole-v1", num_envs)
    spec = ludus.training.loop.Spec(env.observation_space, env.action_space, num_envs)
    chosen = mesh.choose("auto", ppo, spec)
    assert (1 if chosen is mesh.ONE else chosen) == expected


def test_a_cpu_is_one_device_unless_it_is_asked_for_more():
    env = ludus.make_env("CartPole-v1", 8)
    ppo = ludus.PPO(batch_size=64, minibatch_size=32)
    assert ludus.Trainer(ppo, env, ludus.Settings(verbose=False)).loop.devices is mesh.ONE


COMMAND = """
import sys
from ludus.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
LEARN = [
    "train", "env=CartPole-v1", "devices=2", "num_envs=16", "run_dir=run", "total_steps=120000", "seed=0",
    "verbose=false", "record_behaviour=false",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.requirement("S2.7")
def test_cartpole_is_learnt_on_two_devices_that_the_command_line_asks_for(tmp_path):
    words = [sys.executable, "-c", COMMAND]
    done = subprocess.run([*words, *LEARN], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read_config(tmp_path / "run")["devices"] == 2
    identity = read_identity(tmp_path / "run")
    assert len(identity["devices"]) == 2
    policy = ludus.load_policy(tmp_path / "run")
    returns = ludus.evaluate(policy, ludus.make_env("CartPole-v1", 20), 20).returns
    assert np.mean(returns) > 475
    refused = subprocess.run(
        [*words, "resume", "run", "total_steps=140000", "devices=3"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == "ludus: devices=3: must divide num_envs=16"


def test_numbers_of_devices_are_checked():
    for wrong in (0, -1, True, 1.5, "four", None):
        with pytest.raises(LudusError, match="must be auto or an integer of at least 1"):
            mesh.check(wrong)
