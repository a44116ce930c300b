"""Policies of earlier moments of a run: as they were at a checkpoint, or when the run began."""

import contextlib
from pathlib import Path
from typing import Any

import jax

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import Critic
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.policy import Policy
from ludus.envs.base import AnyEnv
from ludus.runs.checkpoint.format import Broken
from ludus.runs.folder import read_config
from ludus.training.mending import mended
from ludus.training.restore import CheckpointSource
from ludus.training.resume import rebuilt
from ludus.training.state_arrays import check_finite, put_back, shapes
from ludus.training.trainer import Trainer


def policy_at(
    run: str | Path, start: int | str, algorithm: Algorithm | None = None, env: AnyEnv | None = None
) -> Policy:
    """Return the policy as it was at a checkpoint; the run may be going on meanwhile."""
    return learned_at(run, start, algorithm, env)[0]


def learned_at(
    run: str | Path, start: int | str, algorithm: Algorithm | None = None, env: AnyEnv | None = None
) -> tuple[Policy, Critic | None, dict[str, Any]]:
    """Return policy and critic (if there is one) as they were at a checkpoint, and the checkpoint's record."""
    run = Path(run)
    config = read_config(run)
    instead = (
        "in Python, pass it to ludus.training.past_policies.policy_at(..., {}=...), whose policy ludus.evaluate plays"
    )
    trainer, _ = rebuilt(Trainer, run, config, algorithm, env, instead=instead, verbose=False)
    with contextlib.closing(trainer.env) if env is None else contextlib.nullcontext():
        source = CheckpointSource(run, start, fallback=False, say=trainer.record.console.say)
        checkpoint, spec = source.checkpoint, source.spec(trainer.loop.spec)
        learner = trainer.algorithm.init(jax.random.key(0), spec)
        expected = {f"learner/{name}": shape for name, shape in shapes(learner).items()}
        broken: list[Broken] = []
        arrays = checkpoint.read(expected, "learner/", broken)
        arrays = mended({"learner": learner}, arrays, broken).arrays  # no part of a replay is returned
        check_finite(checkpoint.path, arrays)
        learner = put_back(learner, {name.removeprefix("learner/"): array for name, array in arrays.items()})
        arrays, id = as_arrays(trainer.algorithm), trainer.env.id
        policy = Policy(arrays, trainer.algorithm.policy(learner), spec, id)
        critic = trainer.algorithm.critic(learner)
        return policy, None if critic is None else Critic(arrays, critic, spec, id), checkpoint.record


def untrained(run: str | Path) -> Policy:
    """Return the policy that a run began with."""
    config = read_config(run)
    instead = "films of it are made in Python, by ludus.training.film.film_episode"
    trainer, _ = rebuilt(Trainer, Path(run), config, instead=instead, verbose=False)
    with contextlib.closing(trainer.env):
        learner = trainer.loop.first_learner()
        state = trainer.algorithm.policy(learner)
        return Policy(as_arrays(trainer.algorithm), state, trainer.loop.spec, trainer.env.id)
