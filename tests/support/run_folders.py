"""Run folders made by hand, for what reads them."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ludus.runtime.demonstration_file import write_demonstrations
from ludus.runtime.demonstrations import Demonstrations
from ludus.spaces import Box

ALGORITHM = {"name": "ppo", "learning_rate": 3e-4, "gamma": 0.99}


def make_run(
    path: Path,
    rows: list[dict[str, Any]] | None = None,
    *,
    env: str = "jax:CartPole-v1",
    seed: int = 0,
    status: str = "finished",
    identity: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    **algorithm: Any,
) -> Path:
    """Write a run folder as training does, with these rows in its journal."""
    path.mkdir(parents=True)
    settings = {"env": env, "num_envs": 8, "seed": seed, "run_dir": str(path), "algorithm": ALGORITHM | algorithm}
    (path / "config.yaml").write_text(yaml.safe_dump(settings | (config or {})))
    known = {"id": f"{seed:032x}", "seed": seed, "devices": ["cpu:0"], "status": status}
    (path / "run.json").write_text(json.dumps(known | (identity or {})))
    lines = [json.dumps({"seq": i, **row}) + "\n" for i, row in enumerate(rows or [])]
    (path / "metrics.jsonl").write_text("".join(lines))
    return path


def train_row(i: int, **figures: Any) -> dict[str, Any]:
    """One iteration of 1024 steps and ten episodes, a second long."""
    counts = {"iteration": i, "steps": 1024 * i, "episodes": 10 * i, "updates": 64 * i}
    return {"kind": "train", **counts, **figures, "elapsed_seconds": float(i), "steps_per_second": 1024.0}


def evaluation_row(i: int, mean: float, std: float = 5.0, episodes: int = 100) -> dict[str, Any]:
    """An evaluation after iteration i."""
    figures = {"eval_return_mean": mean, "eval_return_std": std, "eval_return_min": mean - 2 * std}
    figures |= {"eval_return_max": mean + 2 * std, "eval_length_mean": mean, "eval_episodes": episodes}
    return {"kind": "evaluation", "iteration": i, "steps": 1024 * i, "episodes": 10 * i, "updates": 64 * i} | {
        **figures,
        "elapsed_seconds": float(i),
    }


def learning_rows(iterations: int, top: float = 500.0, seed: int = 0) -> list[dict[str, Any]]:
    """A run that learns: returns rise to `top`, losses fall; an evaluation every ten iterations."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(1, iterations + 1):
        share = min(1.0, 1.5 * i / iterations)
        mean = top * share + (1 - share) * top / 25 * float(random.random())
        figures = {
            "episode_return_mean": mean,
            "episode_return_min": 0.8 * mean,
            "episode_return_max": min(top, 1.1 * mean),
            "episode_length_mean": mean,
            "approx_kl": 0.01 * float(random.random()),
            "clip_fraction": 0.2 * float(random.random()),
            "entropy": 0.69 - 0.3 * share,
            "explained_variance": share,
            "gradient_norm": 1.0 + float(random.random()),
            "learning_rate": 3e-4 * (1 - share / 2),
            "policy_loss": -0.01 * float(random.random()),
            "value_loss": 10.0 / i,
            "total_loss": 5.0 / i,
        }
        rows.append(train_row(i, **figures))
        if i % 10 == 0:
            rows.append(evaluation_row(i, min(top, mean)))
    return rows


LAYERS = ("actor/0", "actor/1", "actor/2", "critic/0", "critic/1", "critic/2")
TIMES = {"environment": 0.1, "act": 0.2, "update": 0.5, "transfer": 0.05, "compile": 0.0}


def full_rows(iterations: int, seed: int = 0) -> list[dict[str, Any]]:
    """A run that journals everything there is: layers, histograms, single episodes, success, where time went."""
    random = np.random.default_rng(seed)
    rows = learning_rows(iterations, seed=seed)
    for row in rows:
        if row["kind"] != "train":
            continue
        i, mean = row["iteration"], row["episode_return_mean"]
        row |= {"success_rate": min(1.0, i / iterations), "alpha": 1.0 / i, "info/fuel/mean": float(random.normal())}
        row["episode_returns"] = [float(x) for x in random.normal(mean, 5.0, 10)]
        row["episode_lengths"] = [float(x) for x in random.normal(mean, 5.0, 10)]
        row |= {f"seconds/{name}": seconds for name, seconds in TIMES.items()}
        if i == 1:
            row["seconds/compile"] = 3.0
        if i % 5 == 0:
            for k, layer in enumerate(LAYERS):
                size = float(np.exp(random.normal(-k, 0.3)))
                for norm, scale in (("gradient", 1), ("update", 1e-3), ("parameter", 10)):
                    row[f"{norm}_norm/{layer}"] = scale * size
                row[f"adam_first_moment_norm/{layer}"] = 0.1 * size
                row[f"adam_second_moment_norm/{layer}"] = 0.01 * size**2
            counts = np.histogram(random.normal(i / iterations, 1.0, 1000), 30, (-3, 3))[0]
            row["histogram/action"] = {"low": -3.0, "high": 3.0, "counts": counts.tolist()}
            row["histogram/gradient"] = {"low": -0.1, "high": 0.1, "counts": counts[::-1].tolist()}
    return rows


def unpacked(values: Any) -> np.ndarray:
    """Return the numbers of a figure as they are."""
    return np.frombuffer(base64.b64decode(values["bdata"]), "<f8") if isinstance(values, dict) else np.array(values)


def write_questions(run: Path, count: int, env: str = "jax:Pendulum-v1", steps: int = 8) -> Demonstrations:
    """Write so many questions about pairs of swinging rods into a run's folder; return their segments."""
    episodes = 2 * count
    angle = np.linspace(0, 3, steps)[None] + np.arange(episodes)[:, None]
    obs = np.stack([np.cos(angle), np.sin(angle), np.full_like(angle, 1.0)], -1).reshape(-1, 3).astype(np.float32)
    ended = np.arange(episodes * steps) % steps == steps - 1
    segments = Demonstrations(
        observation_space=Box(-8.0, 8.0, (3,)),
        action_space=Box(-2.0, 2.0, (1,)),
        obs=obs,
        action=np.sin(3 * angle).reshape(-1, 1).astype(np.float32),
        reward=np.zeros(len(obs), np.float32),
        terminated=np.zeros(len(obs), bool),
        truncated=ended,
        env=env,
    )
    write_demonstrations(segments, run / "reward" / "segments" / "000000.safetensors")
    return segments
