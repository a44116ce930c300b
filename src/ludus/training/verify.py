"""Proofs on a user's own run: that it resumes exactly, and where its first bad number comes from."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.finite_checks import FAULTS
from ludus.envs.base import AnyEnv
from ludus.runs.checkpoint.format import as_safetensors
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.runs.metrics import is_timing
from ludus.runs.storage.options import StorageOptions
from ludus.runs.trackers.base import TrackingOptions
from ludus.runtime import autotuning, files, processes
from ludus.runtime.compilation import cache_in
from ludus.runtime.rng import folded
from ludus.training.budget import Budget
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.curriculum import after
from ludus.training.iteration import UNCOUNTED, Context, TrainState, course, episodes_left, learn
from ludus.training.loop import Loop
from ludus.training.restore import CheckpointSource
from ludus.training.resume import rebuilt, resume
from ludus.training.run_config import meaning_of
from ludus.training.state_arrays import differences, name_of
from ludus.training.trainer import Trainer
from ludus.types import LudusError, Rollout, Tree

OWN_CODE = "another process, in which the proof resumes the run, cannot make it again"


@dataclass(frozen=True)
class ResumeProof:
    """The result of comparing a run without a break with one that was resumed in another process."""

    iterations: int
    hashes: dict[str, str]
    """SHA-256 of all arrays of the state, and of the journal without its timings, of the run without a break."""
    resumed_hashes: dict[str, str]
    first_difference: str | None

    def __str__(self) -> str:
        """A few lines for people."""
        lines = [f"{2 * self.iterations} iterations, against {self.iterations} + resume + {self.iterations}:"]
        for name, digest in self.hashes.items():
            other = self.resumed_hashes[name]
            lines.append(f"  {name:8} {digest[:16]} {'==' if digest == other else '!='} {other[:16]}")
        verdict = "the same, bit by bit" if self.first_difference is None else f"differs at {self.first_difference}"
        return "\n".join([*lines, verdict])


def verify_resume(run: str | Path, iterations: int = 3) -> ResumeProof:
    """Train 2n iterations of a run's own configuration, and n with n more in a fresh process; compare everything.

    Neither finds anything compiled: programs that are compiled again must be the same programs.
    """
    run = Path(run)
    config = read_config(run)
    with tempfile.TemporaryDirectory(prefix="ludus-verify-") as scratch, cache_in(Path(scratch, "compiled")):
        straight, resumed = Path(scratch, "straight"), Path(scratch, "resumed")
        options = CheckpointOptions(every_iterations=iterations, every_minutes=0, keep_last=10, on_error="stop")
        settings: dict[str, Any] = {"checkpoint": options, "tracking": TrackingOptions(tensorboard=False)}
        settings["storage"] = StorageOptions()  # a proof is nobody's run
        settings |= {"num_checkpoints": 0, "video_frequency": 0, "record_behaviour": False, "verbose": False}
        trainer, _ = rebuilt(Trainer, run, config, run_dir=straight, instead=OWN_CODE, **settings)
        trainer.final_episodes = 0
        per_iteration = trainer.env.num_envs * trainer.algorithm.rollout_length(trainer.env.num_envs)
        with contextlib.closing(trainer.env):
            trainer.train(total_steps=2 * iterations * per_iteration)
        shutil.copytree(straight, resumed)
        first = Checkpoints(resumed).steps()[0]
        code = f"from ludus.training.verify import go_on; go_on({str(resumed)!r}, {first}, {f'{scratch}/again'!r})"
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with processes.start(["-c", code], accelerator=True, **pipes) as child:
            errors = child.communicate()[1]
        if child.returncode:
            said = errors.strip().splitlines() or [f"exit code {child.returncode}"]
            raise LudusError(f"{run}: cannot be resumed ({said[-1]})")
        return _compared(iterations, straight, resumed)


def go_on(run: str, step: int, cache: str | None = None) -> None:
    """Resume a run, to its end but for the last evaluation; `cache` is where its programs are compiled to."""
    with contextlib.nullcontext() if cache is None else cache_in(Path(cache)):
        autotuning.go_on(Path(run), read_identity(run), read_config(run))
        trainer = resume(Trainer, run, step, None, None, {"verbose": False})
        trainer.final_episodes = 0
        with contextlib.closing(trainer.env):
            trainer.train()


def state_of(run: str | Path) -> dict[str, np.ndarray]:
    """Return every array of a run's latest checkpoint."""
    checkpoints = Checkpoints(run)
    step = checkpoints.latest()
    if step is None:
        raise LudusError(f"{run}: has no checkpoint")
    checkpoint = checkpoints.open(step)
    return checkpoint.read(checkpoint.stated())


def journal_of(run: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a run's journal without what is never twice the same."""
    return [{name: value for name, value in row.items() if not is_timing(name)} for row in read_journal(run)]


def _compared(iterations: int, straight: Path, resumed: Path) -> ResumeProof:
    states, journals = [state_of(run) for run in (straight, resumed)], [journal_of(run) for run in (straight, resumed)]
    unlike = differences(*states)
    rows = [i for i, (a, b) in enumerate(zip(*journals, strict=False)) if a != b]
    if len(journals[0]) != len(journals[1]):
        rows.append(min(map(len, journals)))
    where = unlike[0] if unlike else f"journal row {rows[0]}" if rows else None
    hashes = [
        {"state": _hash(state), "journal": hashlib.sha256(json.dumps(journal).encode()).hexdigest()}
        for state, journal in zip(states, journals, strict=True)
    ]
    return ResumeProof(iterations, hashes[0], hashes[1], where)


def _hash(state: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name} {state[name].dtype} {state[name].shape} ".encode())
        digest.update(np.ascontiguousarray(state[name]).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Finding:
    """The first bad number of a run: in which iteration, what it is, and where the batch lies that led to it."""

    iteration: int
    what: str
    leaf: str
    batch: Path

    def __str__(self) -> str:
        """One line for people."""
        return f"iteration {self.iteration}: {self.what} is not finite, first in {self.leaf}; the batch is {self.batch}"


def debug(
    run: str | Path, start: int | str = "latest", iterations: int = 1000, say: Callable[[str], None] = print,
    algorithm: Algorithm | None = None, env: AnyEnv | None = None,
) -> Finding | None:  # fmt: skip
    """Play a run again from a checkpoint, update by update, to its first NaN or infinity.

    Nothing of the run is changed; the batch that led there is written to its folder `debug`.
    """
    run = Path(run)
    instead = "pass it again, as ludus.training.verify.debug(..., {}=...)"
    trainer, budget = rebuilt(Trainer, run, read_config(run), algorithm, env, instead=instead, verbose=False)
    with contextlib.closing(trainer.env):
        source = CheckpointSource(run, start, fallback=False, say=say)
        source.check_meaning(meaning_of(trainer.algorithm, trainer.env, trainer.settings))
        trainer.watch(source)
        source.take_up(trainer.changes)
        context = trainer.loop.context(budget if any(budget) else Budget(None, None, np.inf))
        context = context._replace(health_frequency=None)  # where these figures are not due they are NaN, on purpose
        state = trainer.state
        say(f"from {source.step:,} steps on")
        for _ in range(iterations):
            state, _ = trainer.loop.restocked(state, int(state.iteration))
            context = context._replace(scenarios=trainer.loop.supply.data)
            state, finding = _try_iteration(run, trainer.loop, context, state, budget.max_episodes is not None)
            if finding is not None:
                return finding
    return None


def _try_iteration(
    run: Path, loop: Loop, context: Context, state: TrainState, counts_episodes: bool
) -> tuple[TrainState, Finding | None]:
    """Make one iteration in two pieces, so that the batch is there when the update goes wrong."""
    keys = folded(context.keys, state.iteration)
    collect = partial(loop.runner.collect, env=loop.env, num_steps=loop.num_steps, threshold=loop.threshold)
    policy = context.algorithm.policy(state.learner)
    left = episodes_left(counts_episodes, context, state)
    carry, rollout, stats = loop.runner.whole(collect)(
        context.algorithm,
        policy=policy,
        carry=state.carry,
        keys=keys["rollout"],
        episodes_left=left,
        course=course(context, state),
    )
    arguments = (
        context,
        state.learner,
        state.counters,
        state.iteration,
        rollout,
        stats._replace(**dict.fromkeys(UNCOUNTED, ())),
        keys["update"],
    )
    learner, counters, row = jax.jit(learn)(*arguments)
    number = int(state.iteration) + 1
    if not int(row["fault"]):
        stages = after(context.curriculum, state.curriculum, stats)
        return TrainState(learner, carry, state.iteration + 1, counters, state.cohorts, stages), None
    batch = _write_batch(run / "debug" / f"iteration-{number}.safetensors", rollout)
    leaf = _first_bad(("batch", rollout), ("learner", state.learner)) or _first_operation(arguments)
    return state, Finding(number, FAULTS[int(row["fault"])], leaf, batch)


def _first_bad(*trees: tuple[str, Tree]) -> str | None:
    for root, tree in trees:
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            array = np.asarray(leaf) if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.zeros(0)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = np.argwhere(~np.isfinite(array))[0].tolist()
                return f"{root}/{name_of(path)}{where}"
    return None


def _first_operation(arguments: tuple[Any, ...]) -> str:
    """Learn once more, operation by operation, and return the first that gives a NaN."""
    try:
        with jax.disable_jit(), jax.debug_nans(True):
            learn(*arguments)
    except FloatingPointError as error:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
            trace = trace.tb_next
        ours = [frame for frame in frames if "/ludus/" in frame[0] and not frame[0].endswith("verify.py")]
        if ours:
            file, line, function = ours[-1]
            return f"{function} ({Path(file).name}:{line})"
    return "an operation that the compiler has put together with others"


def _write_batch(path: Path, rollout: Rollout) -> Path:
    leaves = jax.tree_util.tree_flatten_with_path(rollout)[0]
    arrays = {name_of(p): np.array(x, order="C") for p, x in leaves if getattr(x, "dtype", None) is not None}
    try:
        files.make_folder(path.parent)
        files.write_whole(path, as_safetensors(arrays))
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror})") from error
    return path
