"""What PPO and SAC learn of driving: one seed trains for a while, is judged in the evaluation set, and prints JSON.

    python benchmarks/driving_learning.py train --scenarios FOLDER --out FOLDER [--algorithm ppo] [--seeds 0 1 2]
        [--seconds 300] [--set num_envs=64 encoder=lq reward.overlap=-20 algorithm.learning_rate=3e-4]
    python benchmarks/driving_learning.py score POLICY [POLICY ...] [--scenarios FOLDER] [--episodes 1000]
    python benchmarks/driving_learning.py curves ROWS [ROWS ...] [--image curves.png]

`train` starts a process for each seed, all at once on one device, and writes as it goes: `NAME-SEED.jsonl`, a row of
figures of training every few seconds, the policy, and at the end `NAME-SEED.json`. `score` plays policies in the fixed
evaluation set, or in that of a stored set; `curves` draws rows (with matplotlib). Needs jax, flax, optax, numpy,
safetensors. `driving.py` measures speed and the drivers by rule.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ludus
from ludus.algorithms.policy import save_policy
from ludus.algorithms.schedules import LinearSchedule
from ludus.networks.encoders import ENCODERS

SEEN: dict[str, Any] = {"objects": 10, "object_steps": 3, "targets": 8}
BOLD: dict[str, float] = {"overlap": -10.0, "offroad": -10.0, "red_light": -10.0}
CAREFUL: dict[str, float] = {"overlap": -20.0, "offroad": -20.0, "red_light": -20.0, "close": -0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "num_envs": 2048,
        "encoder": "lq",
        "sizes": {"depth": 2, "num_latents": 16},
        "share_encoder": False,
        "hidden_sizes": (256, 256),
        "options": SEEN,
        "reward": BOLD,
        "algorithm": {
            "batch_size": 65_536,
            "minibatch_size": 8_192,
            "epochs_per_update": 3,
            "learning_rate": 5e-4,
            "gamma": 0.98,
            "gae_lambda": 0.95,
            "entropy_coef": 0.001,
            "normalize_observations": True,
        },
    },
    "sac": {
        "num_envs": 1024,
        "encoder": "lq",
        "sizes": {"depth": 2, "num_latents": 8},
        "share_encoder": True,
        "hidden_sizes": (256, 256),
        "options": SEEN,
        "reward": CAREFUL,
        "algorithm": {
            "batch_size": 1_024,
            "learning_rate": LinearSchedule(5e-4, 5e-5),
            "gamma": 0.98,
            "tau": 0.01,
            "alpha": 0.1,
            "learning_starts": 32_768,
            "replay_size": 2_000_000,
            "unroll_length": 8,
            "updates_per_step": 1 / 512,
            "normalize_observations": True,
        },
    },
}
"""Sizes for a GPU; the presets in `training/presets/driving` are those for a CPU."""
FIGURES = ("accuracy", "is_success", "collision", "at_fault_collision", "offroad", "red_light", "progress_ratio")
SCORES = (*FIGURES, "nuplan_score", "vmax_score", "comfort", "speed_compliance", "wrong_way", "off_route", "ttc_score")
EVERY = 5.0
"""Seconds between rows."""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["train", "one", "score", "curves"])
    parser.add_argument("files", nargs="*", type=Path, help="policies to score, or rows to draw")
    parser.add_argument("--algorithm", choices=list(SETTINGS), default="ppo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--scenarios", type=Path)
    parser.add_argument("--out", type=Path, default=Path("driving-learning"))
    parser.add_argument("--name")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--image", type=Path, default=Path("curves.png"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    if given.what == "score":
        print(json.dumps({str(path): score(path, given.scenarios, given.episodes) for path in given.files}, indent=2))
    elif given.what == "curves":
        curves(given.files, given.image)
    elif given.what == "one":
        one(given, given.seeds[0])
    else:
        every(given)


def every(given: argparse.Namespace) -> None:
    """Train all seeds at once, each in a process of its own, and print what they came to."""
    given.out.mkdir(parents=True, exist_ok=True)
    words = [word for word in sys.argv[1:] if word != "train"]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    running = []
    for seed in given.seeds:
        command = [sys.executable, __file__, "one", *words, "--seeds", str(seed)]
        with (given.out / f"{named(given)}-{seed}.log").open("w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    for process in running:
        process.wait()
    done = [given.out / f"{named(given)}-{seed}.json" for seed in given.seeds]
    print(json.dumps([json.loads(path.read_text()) if path.exists() else f"{path}: none" for path in done], indent=2))


def named(given: argparse.Namespace) -> str:
    """Return what files are called."""
    return given.name or given.algorithm


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of an algorithm with what `--set` says."""
    made = {key: dict(value) if isinstance(value, dict) else value for key, value in SETTINGS[given.algorithm].items()}
    for word in given.set:
        path, _, text = word.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        group, _, name = path.rpartition(".")
        (made[group] if group else made)[name] = value
    return made


def network(made: dict[str, Any]) -> ludus.MLP:
    """Return the network of settings."""
    encoder = ENCODERS[made["encoder"]]
    built = encoder() if made["encoder"] in ("none", "mlp") else encoder(**made["sizes"])
    return ludus.MLP(tuple(made["hidden_sizes"]), "relu", encoder=built, share_encoder=made["share_encoder"])


def one(given: argparse.Namespace, seed: int) -> None:
    """Train one seed, writing rows and policies, and judge what it has learnt."""
    began, made, name = time.perf_counter(), settings(given), given.out / f"{named(given)}-{seed}"
    given.out.mkdir(parents=True, exist_ok=True)
    build = {"ppo": ludus.PPO, "sac": ludus.SAC}[given.algorithm]
    algorithm = build(network=network(made), **made["algorithm"])
    options = {**made["options"], "reward": made["reward"], "scenarios": str(given.scenarios)}
    env = ludus.make_env("driving", made["num_envs"], **options)
    quiet = ludus.Settings(seed=seed, eval_frequency=0, eval_episodes_final=0, verbose=False, health_frequency=0)
    trainer = ludus.Trainer(algorithm, env, quiet)
    written, kept = 0.0, 0.0
    rows: list[dict[str, float]] = []

    def note(metrics: dict[str, Any]) -> None:
        nonlocal written, kept
        now, step = time.perf_counter() - began, metrics["step_metrics"]
        rows.append({key: step[f"info/{key}/last"] for key in FIGURES if f"info/{key}/last" in step})
        if now - written < EVERY:
            return
        written = now
        means = {key: round(float(np.mean(given)), 4) for key in FIGURES if (given := _given(rows, key))}
        more = {key: step[key] for key in ("entropy", "alpha", "explained_variance", "approx_kl") if key in step}
        more = {key: round(float(value), 4) for key, value in more.items() if value is not None}
        row = {"seconds": round(now, 1), "steps": step.get("steps", metrics["iteration"]), **means, **more}
        with name.with_suffix(".jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.clear()
        if now - kept > 6 * EVERY:
            kept = now
            save_policy(trainer.policy, name.with_suffix(".safetensors"))

    result = trainer.train(max_seconds=given.seconds, callback=note)
    save_policy(trainer.policy, name.with_suffix(".safetensors"))
    spent = time.perf_counter() - began
    told = {"algorithm": given.algorithm, "seed": seed, "steps": result.steps, "seconds": round(spent, 1)}
    name.with_suffix(".json").write_text(json.dumps(told, indent=2))
    told["held_out"] = (
        {}
        if not given.episodes
        else score(name.with_suffix(".safetensors"), given.scenarios, given.episodes, made["options"])
    )
    name.with_suffix(".json").write_text(json.dumps(told, indent=2))
    print(json.dumps(told))


def _given(rows: list[dict[str, float]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None and np.isfinite(row[key])]


def score(path: Path, stored: Path | None, episodes: int, seen: dict[str, Any] = SEEN) -> dict[str, Any]:
    """Play a policy in held-out scenarios; return means with 95% intervals."""
    more = {} if stored is None else {"scenarios": str(stored)}
    env = ludus.make_env("driving", 250, **{**seen, **more})
    evaluation = ludus.evaluate(ludus.load_policy(path), env, min(episodes, env.num_held_out or episodes))
    means, bounds = evaluation.summary(), evaluation.intervals()
    kept = {name: f"info/{name}/last" for name in SCORES}
    told = {
        name: [round(means[key], 4), *(round(x, 4) for x in bounds.get(key, ()))]
        for name, key in kept.items()
        if key in means
    }
    return {"episodes": len(evaluation.returns), **told}


def curves(files: list[Path], image: Path) -> None:
    """Draw the accuracy of training by time, a line for each file of rows; files are called NAME-SEED.jsonl."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    colors = dict(zip(sorted({path.stem.rpartition("-")[0] for path in files}), ("C0", "C1", "C2", "C3"), strict=False))
    for path in sorted(files):
        rows, name = [json.loads(line) for line in path.read_text().splitlines()], path.stem.rpartition("-")[0]
        for place, axis, scale in zip(places, ("seconds", "steps"), (1.0, 1e6), strict=True):
            place.plot([row[axis] / scale for row in rows], [row["is_success"] for row in rows], colors[name], lw=1)
    for name, color in colors.items():
        places[0].plot([], [], color, label=name)
    places[0].set(xlabel="seconds, compiling included", ylabel="is_success in training", ylim=(0, 1))
    places[1].set(xlabel="million steps", xscale="log")
    places[0].legend()
    for place in places:
        place.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(image, dpi=110)


if __name__ == "__main__":
    main()
