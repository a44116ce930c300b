"""Holding a critic against Monte-Carlo rollouts: what states of a recorded episode turn out to be worth."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ludus.envs.base import AnyEnv
from ludus.rollout.monte_carlo import FirstBranch
from ludus.rollout.runner import runner
from ludus.runs.episode_file import BRANCH_RETURN, BRANCH_STEP, EPISODES, Episode, write_episode
from ludus.runs.folder import read_config
from ludus.runtime.rng import stream
from ludus.spaces import flatten
from ludus.training.policy_choice import ChosenPolicy, choose
from ludus.training.record_episode import look, lookers, play_episode
from ludus.training.run_config import environment_in
from ludus.types import Branching, LudusError, Tree, split_mask

STATES, DEPTH, MOST_STEPS = 24, 1000, 2000
"""States that are valued, steps of a branch, and steps of the episode, at most."""
SECONDS = 60.0
"""No other branch is begun after so long."""
FEWEST = 2
"""Branches without which there is no spread."""


def check_values(
    run: str | Path, checkpoint: str | None = None, *, branches: int = 32, seconds: float = SECONDS
) -> Path:
    """Play an episode of a run's policy and branches from its states; write both to `RUN/episodes`, return the file.

    Args:
        run: the run folder.
        checkpoint: which policy, as in `policy_choice.choose`; it must have a critic.
        branches: from each state.
        seconds: after so long, no more of them are begun.
    """
    run = Path(run)
    if branches < FEWEST:
        raise LudusError(f"branches={branches}: must be at least {FEWEST}, or there is no spread to draw")
    config, chosen = read_config(run), choose(run, checkpoint)
    env = environment_in({**config, "num_envs": 1}, "values can be checked where a name makes the environment")
    with contextlib.closing(env):
        episode = play_episode(
            chosen.policy, env, chosen.critic, seed=int(config.get("seed") or 0), about=chosen.about(config),
            most=MOST_STEPS,
        )  # fmt: skip
        episode = with_branches(episode, chosen, env, branches, seconds)
    path = run / EPISODES / f"{chosen.label}.safetensors"
    write_episode(episode, path)
    return path


def with_branches(
    episode: Episode, chosen: ChosenPolicy, env: AnyEnv, branches: int, seconds: float = SECONDS
) -> Episode:
    """Return an episode with the returns of branches from states of it, evenly spaced; actions are sampled in them.

    One branch from every state is played after the other until time is up, so that all states have as many.
    """
    policy, critic, gamma = chosen.policy, chosen.critic, episode.about.gamma
    if critic is None or gamma is None:
        raise LudusError(f"{chosen.label}: has no critic whose values could be checked; give a checkpoint, or final")
    branching = Branching(1, DEPTH, gamma)
    runner(env).check_branching(env, branching)
    steps = np.unique(np.linspace(0, len(episode) - 1, min(STATES, len(episode))).round().astype(np.int32))
    played = stream(episode.about.seed, "evaluation")
    parts, memory = lookers(policy, critic)
    origins = runner(env).revisit(look, parts, memory, env, played, episode.about.index, steps.tolist())
    _check_repeats(episode, env, [split_mask(origin.env.obs)[0] for origin in origins], steps)
    key, deadline, made = stream(episode.about.seed, "value check"), time.monotonic() + seconds, []
    own = parts[0], env, policy.state, critic.state, key, branching
    with runner(env).branching_off(*own) as play:
        while len(made) < FEWEST or (len(made) < branches and time.monotonic() < deadline):
            each = [play(origin, FirstBranch(len(made), i)) for i, origin in enumerate(origins)]
            made.append(np.concatenate([np.asarray(x)[0] for x in each]))
    arrays = {BRANCH_STEP: steps, BRANCH_RETURN: np.stack(made, axis=1).astype(np.float32)}
    return replace(episode, arrays={**episode.arrays, **arrays})


def _check_repeats(episode: Episode, env: AnyEnv, shown: list[Tree], steps: np.ndarray) -> None:
    """Refuse an environment that, played once more, is not where the episode was."""
    parts = zip(*(flatten(env.observation_space, obs) for obs in shown), strict=True)
    for part, recorded in zip(parts, episode.tree("obs").values(), strict=True):
        if not np.allclose(np.concatenate(part), recorded[steps], 1e-3, 1e-3, equal_nan=True):
            raise LudusError(f"{env.id}: does not repeat itself, so the values of its states cannot be checked")
