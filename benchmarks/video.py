"""What overlays cost: 1,600 frames of BipedalWalker (600x400) with overlays, against encoding the same frames alone.

.venv/bin/python benchmarks/video.py

Prints JSON. "encoding" is given finished frames of the whole size; "bare" encodes the scenes alone, which are less than
half as many pixels. Each is done `--repeats` times in turn; times are the least of wall clock and of processor time.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import ludus
from ludus.report.video.encode import Mp4, about_episode, episode_frames, rows_of, write_film
from ludus.report.video.overlay import SCENE, SIZE
from ludus.training.film import headless

FRAMES, DISTINCT, RATE = 1600, 200, 50.0


def recorded(steps: int):
    """A walk of random torques, as an episode: its numbers, and pictures of its first steps."""
    from ludus.envs.signals import signals_of
    from ludus.runs.episode_file import SIGNAL, About, Episode

    env = ludus.make_env("gym:BipedalWalker-v3", render_mode="rgb_array")
    rng = np.random.default_rng(0)
    obs, shown, rewards, pictures = env.reset([0]), [], [], []
    actions = rng.uniform(-1, 1, (steps, 4)).astype(np.float32)
    for action in actions:
        shown.append(obs[0].copy())
        if len(pictures) < DISTINCT:
            pictures.append(env.envs[0].render())
        outcome = env.step(action[None])
        rewards.append(outcome.reward[0])
        obs = outcome.obs
    env.close()
    reward, observed = np.array(rewards, np.float32), np.stack(shown)
    signals = signals_of(env.id, observed, actions)
    arrays = {"obs": observed, "action": actions, "reward": reward, "return": np.cumsum(reward, dtype=np.float32)}
    arrays |= {"value": rng.normal(size=steps).astype(np.float32), "entropy": rng.random(steps).astype(np.float32)}
    arrays |= {"action_low": np.full(4, -1, np.float32), "action_high": np.ones(4, np.float32)}
    arrays |= {SIGNAL + name: np.asarray(signal.values, np.float32) for name, signal in signals.items()}
    units = {name: signal.unit for name, signal in signals.items()}
    about = About(env.id, "benchmark", algorithm="ppo", steps=0, iteration=0, units=units, discrete=(False,) * 4)
    return Episode(about, arrays), pictures


def timed(function) -> tuple[float, float]:
    began, worked = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - worked


def encode(path: Path, frames: list[np.ndarray]) -> None:
    with Mp4(path, RATE) as film:
        for i in range(FRAMES):
            film.add(frames[i % len(frames)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    headless()
    episode, pictures = recorded(FRAMES - round(RATE))  # the last picture stays for a second
    seen = lambda every: (pictures[row % DISTINCT] for row in rows_of(episode, every))  # noqa: E731
    frames = episode_frames(episode, seen, RATE, ("hip 1", "knee 1", "hip 2", "knee 2"))
    finished = [frame.pixels.copy() for frame, _ in zip(frames(1), range(DISTINCT), strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        work = {
            "with overlays": lambda: write_film(path, frames, RATE, about_episode(episode)),
            "encoding": lambda: encode(path, finished),
            "bare": lambda: encode(path, pictures),
            "drawing": lambda: [None for _ in frames(1)],
        }
        times = {name: [] for name in work}
        for _ in range(given.repeats):
            for name, function in work.items():
                times[name].append(timed(function))
        size = path.stat().st_size
    least = {name: [round(min(column), 2) for column in zip(*pairs, strict=True)] for name, pairs in times.items()}
    ratio = [round(least["with overlays"][i] / least["encoding"][i], 3) for i in (0, 1)]
    print(
        json.dumps(
            {
                "frames": FRAMES,
                "scene": SCENE,
                "size": SIZE,
                "cores": len(os.sched_getaffinity(0)),
                "load_average": round(os.getloadavg()[0], 1),
                "seconds_wall_and_cpu": least,
                "ratio_to_encoding_wall_and_cpu": ratio,
                "bytes_last": size,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
