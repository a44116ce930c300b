"""Checks of the algorithms before anything is compiled; each refusal is one line with field, value and fix."""

from typing import TYPE_CHECKING

import numpy as np

from ludus.algorithms.demonstrated import check_allowed
from ludus.algorithms.kl_penalty import REFERENCES
from ludus.algorithms.observations import check_observation_space
from ludus.algorithms.replay import FRAME_SHARE
from ludus.algorithms.schedules import Schedule
from ludus.networks.action_scaling import check_action_space
from ludus.networks.layers import Torso
from ludus.networks.network import network_for
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.demonstrations import check_spaces
from ludus.spaces import Box
from ludus.types import LudusError, Spec

if TYPE_CHECKING:
    from ludus.algorithms.bc import BC
    from ludus.algorithms.ppo import PPO
    from ludus.algorithms.sac import SAC

ADVANTAGES = ("gae", "monte_carlo")
"""The ways to estimate advantages."""


def check_ppo_settings(ppo: "PPO") -> None:
    """Refuse hyperparameters that contradict each other."""
    if ppo.minibatch_size > ppo.batch_size:
        raise LudusError(
            f"algorithm.minibatch_size={ppo.minibatch_size}: must be at most algorithm.batch_size={ppo.batch_size}"
        )
    if ppo.minibatch_size % ppo.accumulation_steps:
        raise LudusError(
            f"algorithm.accumulation_steps={ppo.accumulation_steps}: "
            f"must divide algorithm.minibatch_size={ppo.minibatch_size}"
        )
    if ppo.value_clip_epsilon is not None and not (ppo.normalize_returns or ppo.normalize_rewards):
        raise LudusError(
            "algorithm.value_clip_epsilon needs algorithm.normalize_returns=true (or normalize_rewards): "
            "in raw units it would starve the critic"
        )
    if ppo.advantages not in ADVANTAGES:
        raise LudusError(f"algorithm.advantages={ppo.advantages}: must be {' or '.join(ADVANTAGES)}")
    if ppo.kl_reference not in REFERENCES:
        raise LudusError(f"algorithm.kl_reference={ppo.kl_reference}: must be {' or '.join(REFERENCES)}")
    if ppo.kl_target is not None and isinstance(ppo.kl_coef, Schedule):
        raise LudusError(
            f"algorithm.kl_coef={ppo.kl_coef}: cannot follow a schedule and algorithm.kl_target={ppo.kl_target} too; "
            "give one number to start from"
        )


def check_ppo(ppo: "PPO", spec: Spec) -> None:
    """Refuse spaces, batches and networks that PPO cannot learn with."""
    check_observation_space("PPO", spec.observation_space)
    check_action_space("PPO", spec.action_space)
    if ppo.minibatch_size == 1:
        raise LudusError(
            "algorithm.minibatch_size=1: must be at least 2, "
            "since a single advantage is standardised to 0 and nothing could be learnt"
        )
    if ppo.batch_size % spec.num_envs:
        raise LudusError(f"num_envs={spec.num_envs}: must divide algorithm.batch_size={ppo.batch_size}")
    network = network_for(ppo.network, spec)
    network.check_actor_critic()
    if ppo.critic_learning_rate is not None and not any(network.of_critic_alone):
        raise LudusError(
            f"algorithm.critic_learning_rate={ppo.critic_learning_rate}: {network.kind} has no parameters that its "
            "critic alone uses; leave it out"
        )
    length, rollout = ppo.segment_length, ppo.rollout_length(spec.num_envs)
    if not network.has_memory or length is None:
        return
    if rollout % length:
        raise LudusError(
            f"algorithm.segment_length={length}: must divide the rollout's steps, batch_size / num_envs = {rollout}"
        )
    if (ppo.minibatch_size // ppo.accumulation_steps) % length:
        raise LudusError(
            f"algorithm.minibatch_size={ppo.minibatch_size}: with a memory, minibatches are made of segments, "
            f"so every part must be a multiple of algorithm.segment_length={length}"
        )


def check_ppo_devices(ppo: "PPO", length: int, count: int) -> None:
    """Refuse minibatches that devices cannot share evenly; `length` is how many transitions a row of one has."""
    part = ppo.minibatch_size // ppo.accumulation_steps
    if part // length % count:
        unit = length * count * ppo.accumulation_steps
        rows = f"segments of {length} steps" if length > 1 else "transitions"
        raise LudusError(
            f"algorithm.minibatch_size={ppo.minibatch_size}: {count} devices cannot share its {rows} evenly; give a "
            f"multiple of {unit}"
        )


def check_sac(sac: "SAC", spec: Spec) -> None:
    """Refuse spaces, networks and replays that SAC cannot learn with."""
    check_soft_actor("SAC", "try PPO", sac.network, spec)
    if hasattr(sac.network, "unit"):
        check_sequences(sac, spec)
    inserted = sac.unroll_length * spec.num_envs
    if inserted > sac.replay_size:
        raise LudusError(
            f"algorithm.replay_size={sac.replay_size}: must hold one iteration, "
            f"unroll_length x num_envs = {inserted} transitions"
        )


def check_soft_actor(what: str, instead: str, network: object, spec: Spec) -> None:
    """Refuse spaces and networks that SAC's actor is not for."""
    check_observation_space(what, spec.observation_space)
    space = spec.action_space
    if not (isinstance(space, Box) and space.is_float and space.is_bounded):
        raise LudusError(
            f"{what}: action space {space} is not supported; it must be a Box of floats with finite bounds ({instead})"
        )
    if not hasattr(network, "torso"):
        name = getattr(network, "__name__", type(network).__name__)
        raise LudusError(
            f"algorithm.network={name}: {what} needs torso(part, inputs, generator), which mlp has; a whole network of "
            "your own is for PPO"
        )


def check_bc_settings(bc: "BC") -> None:
    """Refuse choices that are none."""
    for name, choices in (("actor", ("ppo", "sac")), ("loss", ("nll", "mse"))):
        if getattr(bc, name) not in choices:
            raise LudusError(f"algorithm.{name}={getattr(bc, name)}: must be {' or '.join(choices)}")
    if not bc.held_out_share < 1:
        raise LudusError(f"algorithm.held_out_share={bc.held_out_share}: must be below 1, or nothing is learnt from")


def check_bc(bc: "BC", spec: Spec) -> None:
    """Refuse spaces and networks that cannot be learnt with, and demonstrations that are not of the environment."""
    if bc.actor == "sac":
        check_soft_actor("BC with actor=sac", "try algorithm.actor=ppo", bc.network, spec)
    else:
        check_observation_space("BC", spec.observation_space)
        check_action_space("BC", spec.action_space)
        network_for(bc.network, spec).check_actor_critic()
    check_demonstrations(bc.demonstrations, spec)


def check_demonstrations(path: str, spec: Spec) -> None:
    """Refuse demonstrations that are not of the environment."""
    if not path:
        raise LudusError(
            "algorithm.demonstrations: required, but not given (as in algorithm.demonstrations=demos.safetensors)"
        )
    shown = read_demonstrations(path)
    try:
        check_spaces(shown, spec.observation_space, spec.action_space)
        check_allowed(shown)
    except LudusError as error:
        told = str(error).removeprefix("demonstrations: ")
        raise LudusError(f"algorithm.demonstrations={path}: {told}") from error


def check_sac_devices(sac: "SAC", spec: Spec, count: int) -> None:
    """Refuse batches and a replay that devices cannot share evenly."""
    length = sac.segment_length if hasattr(sac.network, "unit") else 1
    check_shares("batch_size", sac.batch_size, count, length)
    check_shares("replay_size", sac.replay_size, count, FRAME_SHARE)


def check_shares(name: str, value: int, count: int, unit: int = 1) -> None:
    """Refuse a number of rows that devices cannot share evenly in whole units."""
    if value // unit % count or value % unit:
        raise LudusError(
            f"algorithm.{name}={value}: {count} devices cannot share it evenly; give a multiple of {unit * count}"
        )


def check_sequences(sac: "SAC", spec: Spec) -> None:
    """Refuse sequences that SAC cannot learn from with a memory."""
    length = sac.burn_in + sac.segment_length
    if getattr(sac.network, "shared", False):
        raise LudusError("algorithm.network.shared=true: must be false, since SAC's critics see actions too")
    torso = sac.network.torso("critic", 1, np.random.default_rng(0))
    if isinstance(torso, Torso) and not len(torso.layers):
        raise LudusError("algorithm.network.hidden_sizes=[]: SAC's critics need a layer that sees memory and action")
    if sac.batch_size % sac.segment_length:
        raise LudusError(
            f"algorithm.segment_length={sac.segment_length}: must divide algorithm.batch_size={sac.batch_size}, since "
            "batches are made of whole sequences"
        )
    window = getattr(sac.network, "context_length", 1)
    if length < window:
        raise LudusError(
            f"algorithm.network.context_length={window}: must be at most algorithm.burn_in + algorithm.segment_length "
            f"= {length}, or acting would see longer pasts than learning ever does"
        )
    if sac.replay_size < length * spec.num_envs:
        raise LudusError(
            f"algorithm.replay_size={sac.replay_size}: must hold one sequence of each environment, "
            f"(burn_in + segment_length) x num_envs = {length * spec.num_envs} transitions"
        )
