"""Export: writes a policy for another runtime, loads the file there, and compares it with the policy.

A file that does not act as the policy does is removed again. The formats hold all of greedy acting: normalisation,
network, choice of the action, and memory.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import Critic, load_critic, save_critic
from ludus.algorithms.policy import Policy, load_policy, save_policy
from ludus.algorithms.policy_file import Learned
from ludus.algorithms.registry import CUSTOM, describe
from ludus.envs.base import AnyEnv
from ludus.export import onnx_graph, stablehlo, torch_files
from ludus.export.interface import Interface, interface_of
from ludus.export.verification import Observations, compare, compare_critic, played_observations, sampled_observations
from ludus.runtime import files
from ludus.runtime.compilation import enable_compilation_cache
from ludus.types import LudusError, Tree

CRITIC = "final_critic"


class Exported(NamedTuple):
    """The files that were written, and the result of the comparison."""

    files: list[Path]
    difference: float
    """The greatest difference of any number, as a share of the largest number where that is above 1."""
    compared: str
    """The number and the origin of the observations that were compared, or that the arrays themselves were."""

    def __str__(self) -> str:
        """Return a line for each file, and one for the comparison."""
        proof = f"the same to {self.difference:.1e} {self.compared}"
        return "\n".join([*map(str, self.files), proof])


class ExportJob(NamedTuple):
    """One export: what to write, and where."""

    policy: Policy
    critic: Critic | None
    folder: Path
    name: str


def export_policy(
    policy: Policy,
    format: str,
    folder: str | Path,
    *,
    critic: Critic | None = None,
    env: AnyEnv | None = None,
    observations: Tree = None,
    name: str = "final_actor",
) -> Exported:
    """Write a policy for another runtime, load it there, and compare; files that act differently are not kept.

    Args:
        policy: as `load_policy` or `trainer.policy` returns it.
        format: "safetensors" (ludus itself), "torch" (state dicts), "onnx" or "stablehlo" (programs).
        folder: where the files go; files of the same name are replaced.
        critic: is written too as safetensors or torch; programs hold the policy alone.
        env: made by `make_env`; some steps in it give the observations to compare on.
        observations: a batch to compare on instead; without both, observations are sampled from their space.
        name: the name of the policy's file in "safetensors" and "torch".
    """
    if format not in FORMATS:
        raise LudusError(f"format={format!r}: must be one of {', '.join(FORMATS)}")
    enable_compilation_cache()
    # On the CPU and in full precision: a GPU would round to ten bits, and the file would be blamed for it.
    with jax.default_device(_cpu()), jax.default_matmul_precision("highest"):
        policy, critic = _on_cpu(policy), _on_cpu(critic)
        compared = _observations(policy, env, observations) if format in RUNTIMES else None
        with _StagingFolder(Path(folder)) as staging:
            job = ExportJob(policy, critic, staging.path, name)
            difference = _as_safetensors(job) if compared is None else _for_runtime(format, job, compared)
            written = staging.publish()
    return Exported(written, difference, "in every array, read again" if compared is None else f"on {compared}")


class _StagingFolder:
    """A folder beside the target where files are written and compared; files that are not published are removed."""

    def __init__(self, target: Path):
        self.target = target

    def __enter__(self) -> "_StagingFolder":
        above = next(path for path in self.target.absolute().parents if path.exists())
        try:
            os.close(files.open_folder(above))
            self.path = Path(tempfile.mkdtemp(prefix=".export-", dir=above))
        except OSError as error:
            raise LudusError(f"{self.target}: cannot be written ({error.strerror or error})") from error
        return self

    def publish(self) -> list[Path]:
        """Move every file to the target."""
        try:
            files.make_folder(self.target)
            targets = [self.target / file.name for file in sorted(self.path.iterdir())]
            for target in targets:
                files.rename(self.path / target.name, target)
            return targets
        except OSError as error:
            raise LudusError(f"{self.target}: cannot be written ({error.strerror or error})") from error

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _cpu() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS may leave the CPU out
        return jax.devices()[0]


def _on_cpu(learned: Learned | None) -> Any:
    if learned is None:
        return None
    return type(learned)(*jax.device_put((learned.algorithm, learned.state), _cpu()), learned.spec, learned.env_id)


def _observations(policy: Policy, env: AnyEnv | None, observations: Tree) -> Observations:
    if observations is None:
        return sampled_observations(policy) if env is None else played_observations(policy, env)
    batch, is_single = policy.as_batch(observations)
    if is_single:
        raise LudusError("observations: must be a batch of them")
    return Observations(jax.tree.map(lambda x: x[None], batch), "given")  # [n, ...] -> [1, n, ...]: one step each


def _as_safetensors(job: ExportJob) -> float:
    """Write and read again; equal arrays act alike, so that no policy has to be run."""
    save_policy(job.policy, file := job.folder / f"{job.name}.safetensors")
    _check_equal(file, job.policy, load_policy(file, _custom_algorithm(job.policy.algorithm)))
    if job.critic is not None:
        save_critic(job.critic, file := job.folder / f"{CRITIC}.safetensors")
        _check_equal(file, job.critic, load_critic(file, _custom_algorithm(job.critic.algorithm)))
    return 0.0


def _check_equal(file: Path, learned: Learned, loaded: Learned) -> None:
    pairs = zip(jax.tree.leaves(learned.state), jax.tree.leaves(loaded.state), strict=True)
    if learned.spec != loaded.spec or not all(np.array_equal(a, b) for a, b in pairs):
        raise LudusError(f"export: {file.name} does not hold what was to be written; nothing was written")


def _for_runtime(format: str, job: ExportJob, compared: Observations) -> float:
    """Write the format of another runtime; what a user's own algorithm cannot be made into is said in one line."""
    try:
        return RUNTIMES[format](job, compared)
    except LudusError:
        raise
    except Exception as error:
        kind = type(job.policy.algorithm)
        if kind.__module__.startswith("ludus."):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise LudusError(
            f"--format={format}: {kind.__name__} is your own code, and cannot be written so ({type(error).__name__}: "
            f"{reason}); --format=safetensors holds any policy"
        ) from error


def _as_torch(job: ExportJob, compared: Observations) -> float:
    torch_files.write(job.policy, file := job.folder / f"{job.name}.pth")
    worst = max(compare(job.policy, torch_files.read_actor(file), compared), _as_safetensors(job))
    if job.critic is None:
        return worst
    torch_files.write(job.critic, file := job.folder / f"{CRITIC}.pth")
    return max(worst, compare_critic(job.policy, job.critic, torch_files.read_critic(file), compared))


def _as_onnx(job: ExportJob, compared: Observations) -> float:
    interface, file = interface_of(job.policy, compared.is_masked), job.folder / "policy.onnx"
    onnx_graph.write(interface, file, _header(job.policy, interface))
    return compare(job.policy, onnx_graph.read(file), compared)


def _as_stablehlo(job: ExportJob, compared: Observations) -> float:
    interface, file = interface_of(job.policy, compared.is_masked), job.folder / "policy.stablehlo"
    stablehlo.write(interface, file)
    (job.folder / "policy.json").write_text(_header(job.policy, interface) + "\n", encoding="utf-8")
    return compare(job.policy, stablehlo.read(file), compared)


RUNTIMES: dict[str, Callable[[ExportJob, Observations], float]] = {
    "torch": _as_torch,
    "onnx": _as_onnx,
    "stablehlo": _as_stablehlo,
}
"""The function that writes and compares the format of each runtime; it returns the greatest difference."""
FORMATS = ("safetensors", *RUNTIMES)


def _header(policy: Policy, interface: Interface) -> str:
    """Return the names, types and shapes of a program's inputs and outputs as JSON."""
    return json.dumps({"format": "ludus-export-1", "env": policy.env_id, **interface.description()}, indent=1)


def _custom_algorithm(algorithm: Algorithm) -> Algorithm | None:
    """Return an algorithm that only the user's code can build again; None if the file describes all of it."""
    description = describe(jax.tree.map(float, algorithm))
    parts = [description["name"], *description.values(), *(description.get("network") or {}).values()]
    return algorithm if any(part == CUSTOM for part in parts if isinstance(part, str)) else None
