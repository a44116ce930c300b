"""Going on with a run: from a run folder to a trainer that is where the run was.

How exactly it goes on is a level that is printed: **exact** (the same numbers, bit by bit, as if nothing had happened),
**rounding** (on a GPU, where it is not known that this process computes with the same kernels) or **episode** (host
environments that cannot be brought back start new episodes).
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus import autotuning, files, progress
from ludus.checkpoint import Checkpoint, Checkpoints, Shape
from ludus.compilation import Options
from ludus.counting import Budget
from ludus.critic import Critic
from ludus.iteration import TrainState
from ludus.learned import scaling_in
from ludus.learning.algorithm import as_arrays
from ludus.learning.registry import build
from ludus.networks.layers import settled
from ludus.policy import Policy
from ludus.run_config import MEANING, changed, environment_in, made_with, meaning_of, settings_in
from ludus.seeding import stream
from ludus.settings import Settings
from ludus.snapshot import ENV, check_env_arrays, first_bad, outline, put_back, shapes
from ludus.tracking.run_folder import RunFolder, read_config
from ludus.trainer import Trainer
from ludus.types import LudusError, Spec

LATER = ("carry/env/return_rest", "cohorts/")
"""Arrays that the earliest checkpoints do not hold: they begin with nothing in them."""


def resume(
    kind: type[Trainer], run: str | Path, start: int | str, algorithm: Any, env: Any, changes: dict[str, Any]
) -> Trainer:
    """Return a trainer that goes on with a run; see `Trainer.resume`."""
    run = Path(run)
    files.refuse_links(run)
    named = {name: value for name, value in (("env", env), ("algorithm", algorithm)) if isinstance(value, str)}
    fallback = bool(changes.pop("fallback", False))
    config = changed(read_config(run), named | changes)
    trainer, budget = rebuilt(kind, run, config, algorithm, env)
    folder = RunFolder.reopen(run)
    try:
        say = trainer.record.console.say
        is_new = folder.identity.get("status") != "finished" or folder.identity.get("iteration") == 0
        if start == "latest" and is_new and not Checkpoints(run).steps():
            source: Source | Beginning = Beginning(say)
        else:
            source = Source(run, start, fallback=fallback, say=say)
            source.check(trainer, folder)
        trainer.go_on_from(source, folder, budget)
    except BaseException:
        folder.close()
        raise
    return trainer


def rebuilt(
    kind: type[Trainer],
    run: Path,
    config: dict[str, Any],
    algorithm: Any = None,
    env: Any = None,
    *,
    run_dir: Path | None = None,
    instead: str = "pass it again, as Trainer.resume(..., {}=...)",
    **other: Any,
) -> tuple[Trainer, Budget]:
    """Return a trainer with the settings of a run but for some others, and the run's budget.

    `instead` says how else the algorithm or environment is given, if only its owner's code can make it.
    """
    try:
        algorithm = build(config["algorithm"], instead.format("algorithm")) if algorithm is None else algorithm
        env = environment_in(config, instead.format("env")) if env is None else env
        settings = Settings(**{**settings_in(config), **other})
        return kind(algorithm, env, settings, run_dir=run_dir), Budget(*(config[name] for name in Budget._fields))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LudusError(f"{run}: its config.yaml is damaged ({type(error).__name__}: {error})") from error


def policy_at(run: str | Path, start: int | str, algorithm: Any = None, env: Any = None) -> Policy:
    """Return the policy as it was at a checkpoint; the run may be going on meanwhile."""
    return learned_at(run, start, algorithm, env)[0]


def learned_at(
    run: str | Path, start: int | str, algorithm: Any = None, env: Any = None
) -> tuple[Policy, Critic, dict[str, Any]]:
    """Return policy and critic as they were at a checkpoint, and the checkpoint's record."""
    run = Path(run)
    config = read_config(run)
    instead = "in Python, pass it to ludus.resume.policy_at(..., {}=...), whose policy ludus.evaluate plays"
    trainer, _ = rebuilt(Trainer, run, config, algorithm, env, instead=instead, verbose=False)
    with contextlib.closing(trainer.env) if env is None else contextlib.nullcontext():
        source = Source(run, start, fallback=False, say=trainer.record.console.say)
        checkpoint, spec = source.checkpoint, source.spec(trainer.loop.spec)
        learner = trainer.algorithm.init(jax.random.key(0), spec)
        expected = {f"learner/{name}": shape for name, shape in shapes(learner).items()}
        arrays = checkpoint.read(expected, "learner/")
        _check_finite(checkpoint, arrays)
        learner = put_back(learner, {name.removeprefix("learner/"): array for name, array in arrays.items()})
        arrays, id = as_arrays(trainer.algorithm), trainer.env.id
        policy = Policy(arrays, trainer.algorithm.policy(learner), spec, id)
        return policy, Critic(arrays, trainer.algorithm.critic(learner), spec, id), checkpoint.record


def untrained(run: str | Path) -> Policy:
    """Return the policy that a run began with."""
    config = read_config(run)
    instead = "films of it are made in Python, by ludus.filming.film_episode"
    trainer, _ = rebuilt(Trainer, Path(run), config, instead=instead, verbose=False)
    with contextlib.closing(trainer.env):
        learner = trainer.algorithm.init(stream(trainer.settings.seed, "init"), trainer.loop.spec)
        state = trainer.algorithm.policy(learner)
        return Policy(as_arrays(trainer.algorithm), state, trainer.loop.spec, trainer.env.id)


class Beginning:
    """Where a run goes on from that was ended before it had written a checkpoint: it has all to do again."""

    record = None

    def __init__(self, say: Callable[[str], None]):
        """Nothing to read."""
        self.say = say

    def compiler_options(self) -> None:
        """Nothing was recorded: they follow from the settings."""

    def load(self, trainer: Trainer, blank: TrainState) -> TrainState:
        """Return the state that a run begins with."""
        return blank

    def go_on(self, trainer: Trainer) -> None:
        """Take back the rows that were journalled."""
        assert trainer.record.folder is not None
        trainer.record.folder.cut(0, 0)
        self.say("the run had not written a checkpoint yet: it begins again, exactly as it did")


class Source:
    """The checkpoint that a run goes on from."""

    def __init__(self, run: Path, start: int | str, fallback: bool, say: Callable[[str], None]):
        """Find the checkpoint and read what it says it holds."""
        self.run, self.say = run, say
        self.checkpoints = Checkpoints(run)
        self.step, self.checkpoint = self._choose(start, fallback)
        self.record = self.checkpoint.record
        try:
            progress.check(self.record, self.step)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error
        self.level = "exact"

    def check(self, trainer: Trainer, folder: RunFolder) -> None:
        """Refuse a checkpoint of another run, or of one with other settings."""
        record = self.record
        try:
            if record["run"] != folder.identity["id"]:
                raise LudusError(f"{self.checkpoint.path}: belongs to another run ({record['run']})")
        except KeyError as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error
        self.check_meaning(trainer)

    def check_meaning(self, trainer: Trainer) -> None:
        """Refuse a checkpoint that was written with other settings; scale numbers as it does."""
        trainer.loop.spec = self.spec(trainer.loop.spec)
        meaning = meaning_of(trainer)
        try:
            saved = {"env_wrappers": [], **self.record["meaning"]}  # checkpoints from before there were any
            for name in MEANING:
                _compare(name, saved[name], meaning[name])
        except (KeyError, TypeError, RecursionError) as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error

    def spec(self, spec: Spec) -> Spec:
        """Return a spec with the scaling that the checkpoint was written with."""
        try:
            return settled(replace(spec, scaling=scaling_in(self.record)))
        except ValueError as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error

    def compiler_options(self) -> Options | None:
        """Return the compiler's options that the run was begun with, if they are for this kind of device."""
        if self.record["made_with"]["platform"] != jax.default_backend():
            return None
        return tuple((name, value) for name, value in self.record["compiler_options"])

    def load(self, trainer: Trainer, blank: TrainState) -> TrainState:
        """Return the state, and bring the environments to where they were."""
        expected, tree = shapes(blank), outline(blank)
        blank = jax.tree.map(lambda _: None, blank)  # its memory is free for what is read now
        arrays = self.arrays(expected, trainer.env.num_envs)
        state = put_back(tree, arrays)
        saved = {name.removeprefix(ENV): array for name, array in arrays.items() if name.startswith(ENV)}
        if trainer.settings.collect == "steps" and not trainer.loop.runner.restore(trainer.env, saved, state.carry):
            self.level = "episode"
        return state

    def arrays(self, expected: dict[str, Shape], num_envs: int) -> dict[str, np.ndarray]:
        """Return the arrays of the state, which are expected, and those of the environments, if all make sense."""
        path, env = self.checkpoint.path, self.checkpoint.stated(ENV)
        check_env_arrays(path, env, self.record["steps"], num_envs)
        stated = self.checkpoint.stated()
        later = {name: x for name, x in expected.items() if name.startswith(LATER) and name not in stated}
        arrays = self.checkpoint.read({name: x for name, x in expected.items() if name not in later} | env)
        arrays |= {name: np.zeros([n or 0 for n in shape.shape], shape.dtype) for name, shape in later.items()}
        _check_finite(self.checkpoint, arrays)
        if arrays["iteration"] != self.record["iteration"]:
            raise LudusError(f"{path}: its state is of another iteration than its record")
        lengths, most = arrays.get(f"{ENV}lengths", np.zeros(0)), max(self.record["steps"], 1024 * num_envs)
        if not all(-1 <= n <= most for n in lengths.ravel().tolist()):
            raise LudusError(f"{path}: {ENV}lengths holds episodes that are longer than the run")
        return arrays

    def go_on(self, trainer: Trainer) -> None:
        """Take back what the run did after the checkpoint, and say from where it goes on."""
        folder, record = trainer.record.folder, self.record
        assert folder is not None
        assert trainer.keeper.checkpoints is not None
        try:
            dropped = trainer.keeper.checkpoints.drop_after(self.step)
        except OSError as error:
            raise LudusError(f"{self.run}: cannot be written ({error.strerror})") from error
        folder.cut(record["journal_rows"], record["journal_bytes"])
        on_gpu = jax.default_backend() == "gpu"
        if self.level == "exact" and on_gpu and not autotuning.is_known(folder.identity.get("autotuning")):
            self.level = "rounding"
        history = [*folder.identity.get("resumed", []), {"steps": self.step, "level": self.level}]
        folder.write_identity(resumed=history)
        exactly = {
            "exact": "every number will be as if nothing had happened",
            "rounding": "this process may have chosen other GPU kernels than the one before, so last bits may differ "
            "(ludus resume lets it read the run's choices)",
            "episode": "the environments cannot be brought back to where they were, so running episodes start anew",
        }[self.level]
        if (now := made_with(trainer)) != record["made_with"]:
            self.say(f"made with {record['made_with']}, resumed with {now}: last bits may differ")
        taken_back = f"; {len(dropped)} later checkpoints are taken back" if dropped else ""
        self.say(f"resumed at {self.step:,} steps · {self.level}: {exactly}{taken_back}")

    def _choose(self, start: int | str, fallback: bool) -> tuple[int, Checkpoint]:
        steps = self.checkpoints.steps()
        if not steps:
            raise LudusError(f"{self.run}: has no checkpoint to go on from")
        step = self._named(start, steps)
        while True:
            try:
                checkpoint = self.checkpoints.open(step)
                if fallback:
                    checkpoint.verify()
                return step, checkpoint
            except LudusError as error:
                earlier = [other for other in steps if other < step]
                if not fallback or not earlier:
                    hint = "; --fallback takes the one before" if earlier and not fallback else ""
                    raise LudusError(f"{error}{hint}") from error
                self.say(f"{error}; trying the one before")
                step = earlier[-1]

    def _named(self, start: int | str, steps: list[int]) -> int:
        step = {"latest": self.checkpoints.latest, "best": self.checkpoints.best}.get(str(start), lambda: None)()
        if step is None and str(start).isdigit():
            step = int(start)
        if step not in steps:
            names = ["latest", *(["best"] if self.checkpoints.best() is not None else []), *map(str, steps)]
            raise LudusError(f"{self.run}: no checkpoint {start}; there are {', '.join(names)}")
        return step


def _check_finite(checkpoint: Checkpoint, arrays: dict[str, Any]) -> None:
    if bad := first_bad(arrays):
        raise LudusError(f"{checkpoint.path}: {bad} holds a NaN or an infinity")


def _compare(key: str, saved: Any, now: Any) -> None:
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in sorted(saved.keys() | now.keys()):
            _compare(f"{key}.{name}", saved.get(name), now.get(name))
    elif saved != now and str(saved) != str(now):  # an infinity is saved as its text
        saved, now = str(saved)[:200], str(now)[:200]
        raise LudusError(f"{key}={now}: the checkpoint was written with {saved}, and would mean something else now")
