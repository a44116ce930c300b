"""Policies for other runtimes: the whole of greedy acting, proven there before anything is handed over."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ludus import files
from ludus.compilation import enable_compilation_cache
from ludus.critic import Critic, load_critic, save_critic
from ludus.export import onnx_graph, stablehlo, torch_files
from ludus.export.interface import interface_of
from ludus.export.verification import Observations, compare, compare_critic, drawn, played
from ludus.learned import Learned
from ludus.learning.registry import CUSTOM, describe
from ludus.policy import Policy, load_policy, save_policy
from ludus.types import LudusError

CRITIC = "final_critic"


class Exported(NamedTuple):
    """What was written, and how it was proven."""

    files: list[Path]
    difference: float
    """The greatest that was seen, as a share of the largest number where that is above 1."""
    compared: str
    """What was compared: how many observations from where, or the arrays themselves."""

    def __str__(self) -> str:
        """A line for each file, and one for the proof."""
        proof = f"the same to {self.difference:.1e} {self.compared}"
        return "\n".join([*map(str, self.files), proof])


class Job(NamedTuple):
    """What is to be written, where, and what it is proven on."""

    policy: Policy
    critic: Critic | None
    seen: Any
    """Observations; None where nothing is run."""
    folder: Path
    name: str


def export_policy(
    policy: Policy,
    format: str,
    folder: str | Path,
    *,
    critic: Critic | None = None,
    env: Any = None,
    observations: Any = None,
    name: str = "final_actor",
) -> Exported:
    """Write a policy for another runtime, load it there, and compare; what does not act alike is not kept.

    Args:
        policy: as `load_policy` or `trainer.policy` returns it.
        format: "safetensors" (ludus itself), "torch" (state dicts), "onnx" or "stablehlo" (programs).
        folder: where the files go; files of the same name are replaced.
        critic: goes along as safetensors or torch; programs are of the policy alone.
        env: made by `make_env`; some steps in it give the observations to compare on.
        observations: a batch to compare on instead; without both, observations are drawn from their space.
        name: what the policy's file is called in "safetensors" and "torch".
    """
    if format not in FORMATS:
        raise LudusError(f"format={format!r}: must be one of {', '.join(FORMATS)}")
    enable_compilation_cache()
    # On the CPU and in full precision: a GPU would round to ten bits, and the file would be blamed for it.
    with jax.default_device(_cpu()), jax.default_matmul_precision("highest"):
        policy, critic = _on_cpu(policy), _on_cpu(critic)
        seen = None if format == "safetensors" else _observations(policy, env, observations)
        with _Workshop(Path(folder)) as workshop:
            difference = FORMATS[format](Job(policy, critic, seen, workshop.path, name))
            made = workshop.hand_over()
    return Exported(made, difference, "in every array, read again" if seen is None else f"on {seen}")


class _Workshop:
    """A folder beside the target in which files are made and proven; whatever is not handed over is removed."""

    def __init__(self, target: Path):
        self.target = target

    def __enter__(self) -> "_Workshop":
        above = next(path for path in self.target.absolute().parents if path.exists())
        try:
            os.close(files.open_folder(above))
            self.path = Path(tempfile.mkdtemp(prefix=".export-", dir=above))
        except OSError as error:
            raise LudusError(f"{self.target}: cannot be written ({error.strerror or error})") from error
        return self

    def hand_over(self) -> list[Path]:
        """Move every file to its place."""
        try:
            files.make_folder(self.target)
            made = [self.target / file.name for file in sorted(self.path.iterdir())]
            for file in made:
                files.rename(self.path / file.name, file)
            return made
        except OSError as error:
            raise LudusError(f"{self.target}: cannot be written ({error.strerror or error})") from error

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS may leave the CPU out
        return jax.devices()[0]


def _on_cpu(learned: Any) -> Any:
    if learned is None:
        return None
    return type(learned)(*jax.device_put((learned.algorithm, learned.state), _cpu()), learned.spec, learned.env_id)


def _observations(policy: Policy, env: Any, observations: Any) -> Observations:
    if observations is None:
        return drawn(policy) if env is None else played(policy, env)
    batch, is_single = policy.as_batch(observations)
    if is_single:
        raise LudusError("observations: must be a batch of them")
    return Observations(jax.tree.map(lambda x: x[None], batch), "given")  # [n, ...] -> [1, n, ...]: one step each


def _as_safetensors(job: Job) -> float:
    """Equal arrays act alike, so there is nothing to run."""
    save_policy(job.policy, file := job.folder / f"{job.name}.safetensors")
    _check_equal(file, job.policy, load_policy(file, _own(job.policy.algorithm)))
    if job.critic is not None:
        save_critic(job.critic, file := job.folder / f"{CRITIC}.safetensors")
        _check_equal(file, job.critic, load_critic(file, _own(job.critic.algorithm)))
    return 0.0


def _check_equal(file: Path, learned: Learned, loaded: Learned) -> None:
    pairs = zip(jax.tree.leaves(learned.state), jax.tree.leaves(loaded.state), strict=True)
    if learned.spec != loaded.spec or not all(np.array_equal(a, b) for a, b in pairs):
        raise LudusError(f"export: {file.name} does not hold what was to be written; nothing was written")


def _as_torch(job: Job) -> float:
    torch_files.write(job.policy, file := job.folder / f"{job.name}.pth")
    worst = max(compare(job.policy, torch_files.read_actor(file), job.seen), _as_safetensors(job))
    if job.critic is None:
        return worst
    torch_files.write(job.critic, file := job.folder / f"{CRITIC}.pth")
    return max(worst, compare_critic(job.policy, job.critic, torch_files.read_critic(file), job.seen))


def _as_onnx(job: Job) -> float:
    interface, file = interface_of(job.policy, job.seen.is_masked), job.folder / "policy.onnx"
    onnx_graph.write(interface, file, _header(job))
    return compare(job.policy, onnx_graph.read(file), job.seen)


def _as_stablehlo(job: Job) -> float:
    interface, file = interface_of(job.policy, job.seen.is_masked), job.folder / "policy.stablehlo"
    stablehlo.write(interface, file)
    (job.folder / "policy.json").write_text(_header(job) + "\n", encoding="utf-8")
    return compare(job.policy, stablehlo.read(file), job.seen)


FORMATS: dict[str, Callable[[Job], float]] = {
    "safetensors": _as_safetensors,
    "torch": _as_torch,
    "onnx": _as_onnx,
    "stablehlo": _as_stablehlo,
}
"""How each format is written and proven; each returns the greatest difference that it saw."""


def _header(job: Job) -> str:
    """Return the names, types and shapes of a program's inputs and outputs as JSON."""
    ports = interface_of(job.policy, job.seen.is_masked).description()
    return json.dumps({"format": "ludus-export-1", "env": job.policy.env_id, **ports}, indent=1)


def _own(algorithm: Any) -> Any:
    """Return an algorithm that only the user's code can build again; None for one that the file describes in full."""
    description = describe(jax.tree.map(float, algorithm))
    return algorithm if CUSTOM in (description["network"]["name"], description["optimizer"]) else None
