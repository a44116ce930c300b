"""Runs and episodes to film, and how a film is looked at again."""

import json
from pathlib import Path

import av
import numpy as np

import ludus
from ludus.runs.episode_file import About, Episode

SHORT = {"eval_frequency": 0, "verbose": False}


def trained(folder: Path, id: str, steps: int = 128, **options) -> Path:
    """A run of a few updates; its episodes are cut short, since nobody looks at them."""
    env = ludus.make_env(id, num_envs=4, **{"max_episode_steps": 40, **options.pop("env_options", {})})
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(**{**SHORT, **options}), run_dir=folder)
    trainer.final_episodes = 0
    trainer.train(total_steps=steps)
    env.close()
    return folder


def made(steps: int = 30, components: int = 2, signals: int = 3, discrete: bool = False, **about) -> Episode:
    """An episode of random numbers."""
    rng = np.random.default_rng(0)
    reward = rng.normal(size=steps).astype(np.float32)
    action = rng.integers(3, size=steps) if discrete else rng.uniform(-1, 1, (steps, components)).astype(np.float32)
    count = 1 if discrete else components
    arrays = {
        "obs": rng.normal(size=(steps, 4)).astype(np.float32),
        "final_obs": rng.normal(size=(1, 4)).astype(np.float32),
        "action": action,
        "reward": reward,
        "return": np.cumsum(reward, dtype=np.float32),
        "value": (40 * rng.normal(size=steps)).astype(np.float32),
        "entropy": rng.random(steps).astype(np.float32),
        "action_low": np.full(count, 0 if discrete else -1, np.float32),
        "action_high": np.full(count, 2 if discrete else 1, np.float32),
        **{f"signal/s{i}": (10.0 ** (i % 5) * rng.normal(size=steps)).astype(np.float32) for i in range(signals)},
    }
    units = {f"s{i}": "m" if i % 2 else "rad/s" for i in range(signals)}
    defaults = {"env": "gym:Mine-v0", "label": "final", "steps": 4096, "iteration": 8, "units": units}
    return Episode(About(**{**defaults, "discrete": (discrete,) * count, **about}), arrays)


def watch(path: Path) -> list[np.ndarray]:
    """Decode every frame of a film."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def side(path: Path) -> tuple[dict, list[dict]]:
    """Read the side file of a film: its first line, and those of the frames."""
    lines = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    return lines[0], lines[1:]


def assert_drawn_is_recorded(episode: Episode, lines: list[dict]) -> None:
    """Every number of the side file is the recorded one, exactly."""
    played = [line for line in lines if "ended" not in line]
    assert [line["row"] for line in played] == list(range(len(episode)))
    for line in lines:
        row = line["row"]
        for name in ("reward", "return", "value", "entropy"):
            if name in episode.arrays:
                assert np.float32(line[name]) == episode.arrays[name][row]
        assert np.array_equal(np.float32(line["action"]), episode.actions[row])
        assert line["signals"].keys() == episode.signals.keys()
        for name, value in line["signals"].items():
            assert np.float32(value) == episode.signals[name][row]
        assert line["step"] == row + 1 and line["epoch"] == episode.about.iteration
        assert line["shown"]["step"] == f"{row + 1:,}"
        for name, text in line["shown"].items():
            if name in episode.signals:
                value = line["signals"][name]
                assert abs(float(text.split()[0]) - value) <= (0.51 if abs(value) >= 1000 else 0.0051)
