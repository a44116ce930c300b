"""Command lines and run folders that make no sense, made at random."""

import random
import shutil
from pathlib import Path
from typing import Any

from ludus.training.config import TrainConfig  # noqa: F401  imported once for all

Chance = random.Random
KEYS = (
    "env", "seed", "total_steps", "max_seconds", "eval_frequency", "eval_episodes", "num_checkpoints", "run_dir",
    "preset", "algorithm", "algorithm.gamma", "algorithm.learning_rate", "algorithm.batch_size",
    "algorithm.minibatch_size", "algorithm.network", "algorithm.network.hidden_sizes", "algorithm/network", "collect",
    "verbose", "checkpoint",
    "checkpoint.every_iterations", "checkpoint.every_minutes", "checkpoint.keep_last", "checkpoint.on_error",
    "checkpoint.best_by", "env_options.gravity", "env_options", "fallback", "on_worker_fault", "colour",
    "", "a.b.c", "é",
)  # fmt: skip
VALUES = (
    "", "0", "1", "-1", "3", "1e3", "1e400", "-1e400", "nan", "inf", "true", "null", "[]", "{}", "[1,2", "{a:1}",
    "[[[[1]]]]", "x", "'", '"', "\\", "é", "\u202e", "💥", "9" * 5000, "a" * 5000, "${oc.env:HOME}", "${x}",
    "???", "!!python/object:os.system", "&a [*a]", "2**63", "9223372036854775808", "0x10", "1_000",
    "CartPole-v1", "gym:CartPole-v1", "ppo", "sac", "steps",
    "continue", "stop", "/", "..", "latest", "[" * 3000, "1,2,3", "a=b=c", "--x", "null,null",
)  # fmt: skip
ENVS = (
    "CartPole-v1",
    "jax:Pendulum-v1",
    "gym:CartPole-v1",
    "Nope-v0",
    "gym:",
    ":",
    "object:x",
    "os:system",
    "",
    "gym:../x",
)
VERBS = ("train", "resume", "evaluate", "verify-resume", "debug", "export")
FLAGS = {
    "train": ("-m", "--multirun"),
    "resume": ("--from", "--fallback"),
    "evaluate": ("--episodes", "--seed", "--env", "--checkpoint", "--json"),
    "verify-resume": ("--iterations",),
    "debug": ("--from", "--iterations"),
    "export": ("--format", "--policy", "--output"),
}


def command(chance: Chance, run: Path, scratch: Path) -> list[str]:
    """Return the words of a command, of which some may make sense."""
    if chance.random() < 0.05:
        return [chance.choice([*VALUES, "--help", "--version", "-h", "trian"]) for _ in range(chance.randint(0, 3))]
    verb = chance.choice(VERBS)
    words = [verb]
    if verb == "train":
        words += [f"env={chance.choice(ENVS)}", f"run_dir={scratch / 'new'}", "total_steps=100"][: chance.randint(1, 3)]
    elif chance.random() < 0.85:
        words.append(str(chance.choice([run, run, run, scratch, scratch / "no\nthing", run / "config.yaml", ""])))
    for _ in range(chance.randint(0, 3)):
        if chance.random() < 0.5 and verb in ("train", "resume"):
            words.append(f"{chance.choice(KEYS)}={chance.choice(VALUES)}")
        else:
            words.append(chance.choice(FLAGS[verb]))
            words += [chance.choice(VALUES)] * (chance.random() < 0.7)
    if verb == "export" and chance.random() < 0.7:
        words += ["--format", chance.choice(["torch", "onnx", "safetensors", "stablehlo", "pickle"])]
    return [word.replace("\0", "") for word in words]


def damage(chance: Chance, run: Path) -> None:
    """Spoil the configuration or the identity of a run."""
    name = chance.choice(["config.yaml", "config.yaml", "run.json"])
    path = run / name
    text = path.read_text()
    bomb = "\n".join([f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12)])
    whole = [
        "", "null", "[]", "{}", "x", "'", "\ufeff", "a: &a [*a]", bomb, f"algorithm:\n  {bomb}".replace("\n", "\n  "),
        "[" * 5000, "a: " * 2000, "{" * 5000, "- " * 3000, "!!python/object/apply:os.system [id]",
        "a: 2001-99-99", "a: !!int x", "? [a, b]\n: c", "a: " + "9" * 5000, "\x00",
        "é: é", "a: 1\na: 2", "%YAML 9.9\n---\na: 1", "a: !!binary x",
        "<<: 1", "<<: [1]",
    ]  # fmt: skip
    kind = chance.randrange(5)
    if kind == 0:
        path.write_text(chance.choice(whole))
    elif kind == 1:
        path.write_bytes(chance.choice([b"\xff\xfe\xff", b"\x00" * 100, chance.randbytes(200)]))
    elif kind == 2:
        path.write_text(text[: chance.randrange(len(text))])
    elif kind == 3:
        path.unlink()
        if chance.random() < 0.5:
            path.mkdir()
    else:
        lines = text.splitlines()
        for _ in range(chance.randint(1, 3)):
            index = chance.randrange(len(lines))
            key = lines[index].partition(":")[0]
            lines[index] = f"{key}: {chance.choice(VALUES)}"
            if "num_envs" in key or "num_workers" in key:
                lines[index] = f"{key}: {chance.choice(['x', '-1', 'null', '[]', '0', '1.5', '2'])}"
        path.write_text("\n".join(lines))


def trial(number: int, run: Path, scratch: Path) -> tuple[list[str], Path]:
    """Return a command, and the run it may speak of, damaged in every second trial."""
    chance = Chance(number)
    copy = scratch / "copy"
    for folder in (copy, scratch / "new"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, copy)
    if number % 2:
        damage(chance, copy)
        verb = chance.choice(VERBS[1:])
        more: dict[str, Any] = {"export": ["--format", "safetensors"], "evaluate": ["--episodes", "1"]}
        return [verb, str(copy), *more.get(verb, [])], copy
    return command(chance, copy, scratch), copy
