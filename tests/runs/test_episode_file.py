"""Recorded episodes: the file holds what was recorded, and nothing damaged is taken for one."""

import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from ludus.runs.episode_file import About, Episode, read_episode, read_episodes, write_episode
from ludus.types import LudusError


def made(length=5, **about) -> Episode:
    rng = np.random.default_rng(0)
    reward = rng.normal(size=length).astype(np.float32)
    arrays = {
        "obs": rng.normal(size=(length, 3)).astype(np.float32),
        "action": rng.integers(2, size=length),
        "reward": reward,
        "return": np.cumsum(reward, dtype=np.float32),
        "value": rng.normal(size=length).astype(np.float32),
        "final_value": np.array([2.0], np.float32),
        "action_low": np.zeros(1, np.float32),
        "action_high": np.ones(1, np.float32),
        "signal/z speed": rng.normal(size=length).astype(np.float32),
        "signal/a height": rng.normal(size=length).astype(np.float32),
    }
    units = {"z speed": "m/s", "a height": "m"}
    return Episode(About(**{"env": "gym:Mine", "units": units, "discrete": (True,), **about}), arrays)


@pytest.mark.requirement("S4.3", "S4.24")
def test_what_is_read_is_what_was_written(tmp_path):
    about = {"label": "best", "steps": 2048, "iteration": 4, "gamma": 0.9, "env_options": {"gravity": 9.0}, "seed": 3}
    episode = made(**about, truncated=True)
    write_episode(episode, tmp_path / "episodes" / "best.safetensors")
    again = read_episode(tmp_path / "episodes" / "best.safetensors")
    assert again.about == episode.about
    assert again.arrays.keys() == episode.arrays.keys()
    for name, array in episode.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert list(again.signals) == ["z speed", "a height"], "in the order of their declaration"
    assert (tmp_path / "episodes" / "best.safetensors").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("truncated", [False, True])
def test_realised_returns_are_discounted_and_bootstrapped_only_where_the_episode_was_cut(truncated):
    episode = made(gamma=0.5, truncated=truncated, terminated=not truncated)
    reward = episode.arrays["reward"].astype(np.float64)
    for t, realised in enumerate(episode.realised()):
        rest = sum(0.5 ** (k - t) * reward[k] for k in range(t, 5)) + truncated * 0.5 ** (5 - t) * 2.0
        assert realised == pytest.approx(rest)


def test_a_runs_episodes_come_in_the_order_of_training_and_damaged_ones_are_left_out(tmp_path):
    for label, steps in (("final", 300), ("100", 100), ("20", 20)):
        write_episode(made(label=label, steps=steps), tmp_path / "episodes" / f"{label}.safetensors")
    write_episode(made(label="best"), tmp_path / "episodes" / "best.safetensors")
    (tmp_path / "episodes" / "hurt.safetensors").write_bytes(b"\x00" * 100)
    assert list(read_episodes(tmp_path)) == ["20", "100", "final", "best"]
    assert read_episodes(tmp_path / "nowhere") == {}


def damaged(tmp_path, **changes):
    episode = made()
    arrays = {**episode.arrays, **changes}
    path = tmp_path / "hurt.safetensors"
    write_episode(Episode(episode.about, {name: x for name, x in arrays.items() if x is not None}), path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"return": np.zeros(4, np.float32)},
        {"signal/z speed": np.zeros(6, np.float32)},
        {"value": np.zeros(2, np.float32)},
        {"signal/a height": None},
        {"reward": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path, changes):
    with pytest.raises(LudusError, match=r"hurt.safetensors: not a readable episode"):
        read_episode(damaged(tmp_path, **changes))


@pytest.mark.parametrize("about", [{"steps": "many"}, {"label": 3}, {"units": {"z speed": 1, "a height": "m"}}])
def test_a_header_of_other_types_is_refused(tmp_path, about):
    write_episode(made(**about), tmp_path / "odd.safetensors")
    with pytest.raises(LudusError, match="in its header"):
        read_episode(tmp_path / "odd.safetensors")


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(LudusError, match=r"none.safetensors: no such episode file"):
        read_episode(tmp_path / "none.safetensors")
    save_file({"reward": np.zeros(3)}, tmp_path / "other.safetensors", {"format": "ludus-policy-1"})
    with pytest.raises(LudusError, match="its format is not ludus-episode-1"):
        read_episode(tmp_path / "other.safetensors")
    save_file({"reward": np.zeros(3)}, tmp_path / "odd.safetensors", {"format": "ludus-episode-1", "env": "[" * 9000})
    with pytest.raises(LudusError, match="not a readable episode"):
        read_episode(tmp_path / "odd.safetensors")


def test_reading_needs_no_jax():
    code = "import sys, ludus.runs.episode_file; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
