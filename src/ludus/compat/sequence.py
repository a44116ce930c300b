"""The sequence trainer's vocabulary: `train`, and the three transformer networks that it is given.

    policy_net = TransformerPolicyNetwork(input_dim=10, action_dim=4).to("cpu")
    value_net = TransformerValueNetwork(10).to("cpu")
    reward_model = TransformerRewardModel(10).to("cpu")
    history = train(policy_net, value_net, reward_model, num_iterations=1000)

Behind it are `ludus.Trainer` with `ludus.PPO`, and a task of `ludus.envs.sequence` that the reward model judges.
"""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.algorithms.ppo import PPO, PPOState
from ludus.algorithms.sequence_reward import fit_reward
from ludus.envs.base import AnyEnv, Environment
from ludus.envs.registry import make_env
from ludus.envs.sequence.judged import TASK_REWARD, JudgedTask
from ludus.envs.sequence.task import SequenceTask
from ludus.envs.sequence.vector_toy import vector_toy
from ludus.networks.actor_critic import ActorCritic, MemoryActorCritic
from ludus.networks.builders import NetworkBuilder, Transformer
from ludus.networks.judges import SequenceReward, judge_of
from ludus.networks.sequence_networks import (
    SequenceNetwork,
    TransformerPolicyNetwork,
    TransformerRewardModel,
    TransformerValueNetwork,
)
from ludus.networks.window import WindowMemory
from ludus.runtime.compilation import default_device
from ludus.runtime.files import IDENTITY
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete
from ludus.training.loop import Loop
from ludus.training.settings import Settings
from ludus.training.trainer import Trainer
from ludus.types import Course, LudusError, RolloutKeys, Spec

__all__ = ["TransformerPolicyNetwork", "TransformerRewardModel", "TransformerValueNetwork", "train"]

FIGURES = {
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
    "episode_return_mean": "mean_return",
    "episode_length_mean": "mean_length",
    "entropy": "entropy",
    "approx_kl": "approx_kl",
    "clip_fraction": "clip_fraction",
    f"info/{TASK_REWARD}/mean": "task_reward",
}
"""Figures of the journal, and their names in a history."""
ROLLOUTS = 16
"""Rollouts that a reward model is fitted to."""


class TrainingHistory(list[dict[str, float]]):
    """A dict of figures for each iteration of a call; the trainer behind them has algorithm, learner and record."""

    trainer: Trainer

    def hear(self, metrics: dict[str, Any]) -> None:
        """Take in an iteration."""
        row = metrics["step_metrics"]
        figures = {name: row[ours] for ours, name in FIGURES.items() if ours in row}
        self.append({"iteration": row["iteration"], "episodes": row["episodes"], **figures})


@dataclass(frozen=True)
class TwoTransformers:
    """Builds an actor-critic of two transformers that differ in their sizes."""

    policy: Transformer
    value: Transformer

    def __call__(self, spec: Spec, rngs: nnx.Rngs) -> ActorCritic:
        """Build both, and let the first have the critic of the second."""
        module, other = self.policy(spec, rngs), self.value(spec, rngs)
        assert isinstance(module, MemoryActorCritic) and isinstance(other, MemoryActorCritic)
        module.critic_memory, module.critic_torso = other.critic_memory, other.critic_torso
        module.critic_head = other.critic_head
        return module


def train(
    policy_net: TransformerPolicyNetwork,
    value_net: TransformerValueNetwork,
    reward_model: SequenceReward | None,
    num_iterations: int = 1000,
    episodes_per_iteration: int = 10,
    max_depth: int = 5,
    sequence_length: int = 10,
    gamma: float = 0.99,
    clip_epsilon: float = 0.2,
    policy_lr: float = 1e-4,
    value_lr: float = 1e-3,
    *,
    task: Environment | None = None,
    seed: int = 0,
    episode_length: int | None = None,
    branches: int = 5,
    train_reward_model: bool = False,
    epochs_per_update: int = 4,
    minibatches: int = 1,
    entropy_coef: float = 0.01,
    max_grad_norm: float = 0.5,
    target_kl: float | None = None,
    run_dir: str | Path | None = None,
) -> TrainingHistory:
    """Train a policy and a value network in place, by clipped PPO on what a reward model says; return the history.

    Args:
        policy_net: the policy; of the task's vectors and for its number of actions.
        value_net: the critic.
        reward_model: what rewards come from: a `TransformerRewardModel`, any function of sequences `(T, B, input_dim)`
            and padding to rewards `(B, 1)`, or None for the task's own. It stays as it is.
        num_iterations: iterations, each of one collection and one update.
        episodes_per_iteration: whole episodes in each iteration, played side by side.
        max_depth: steps of each Monte-Carlo branch; from there on the value network judges.
        sequence_length: states that policy, value and reward depend on; the networks keep it.
        gamma: discount factor.
        clip_epsilon: how far the probability ratio may move from 1.
        policy_lr: step size of the policy's Adam.
        value_lr: step size of the value network's.
        task: a `ludus.envs.sequence.task.SequenceTask`, or another `ludus.Environment` that shows a vector; None: that
            of `VectorToy-v1` in the networks' sizes.
        seed: what all randomness comes from, but for the networks' own beginning.
        episode_length: steps of an episode; None: as the task says.
        branches: Monte-Carlo branches that are played from every state to estimate advantages; 0: none, advantages are
            discounted returns less the value.
        train_reward_model: fit the reward model first, in place, to the task's own rewards in episodes of the policy
            as it is given; while policy and value network learn, it stays as it is.
        epochs_per_update: passes over an iteration's episodes.
        minibatches: parts that each pass is cut into, of whole episodes.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: each network's gradient is scaled down to this norm.
        target_kl: end an update's epochs once the policy has moved 1.5 times as far; None: never.
        run_dir: a folder makes it a run that can be reported; called again with it, training goes on where it was.
    """
    _check_networks(policy_net, value_net)
    _check_counts(1, num_iterations=num_iterations, max_depth=max_depth, sequence_length=sequence_length)
    _check_counts(1, episodes_per_iteration=episodes_per_iteration, minibatches=minibatches)
    _check_counts(0, branches=branches)
    _check_minibatches(minibatches, episodes_per_iteration)
    if train_reward_model and not isinstance(reward_model, SequenceNetwork):
        raise LudusError("train_reward_model=True: needs a TransformerRewardModel; no other has parameters to fit")
    played = _task(policy_net, task, episode_length)
    longest = _longest(played, episode_length)
    ppo = PPO(
        learning_rate=policy_lr,
        critic_learning_rate=value_lr,
        gamma=gamma,
        gae_lambda=1.0,  # targets are discounted returns
        clip_epsilon=clip_epsilon,
        entropy_coef=entropy_coef,
        max_grad_norm=max_grad_norm,
        target_kl=target_kl,
        value_loss_scale=1.0,  # the mean squared error, of returns as they are
        normalize_returns=False,
        anneal_learning_rate=False,
        batch_size=episodes_per_iteration * longest,
        minibatch_size=-(-episodes_per_iteration // minibatches) * longest,
        segment_length=longest,
        epochs_per_update=epochs_per_update,
        network=_network(policy_net, value_net, sequence_length, longest),
        advantages="monte_carlo" if branches else "gae",
        branches=max(1, branches),
        branch_depth=max_depth if branches else None,
    )
    env = make_env(played, episodes_per_iteration, max_episode_steps=longest)
    history = TrainingHistory()
    with _on(policy_net.device):
        if train_reward_model:
            loop = Loop(ppo, env, Settings(seed=seed, collect="episodes"))
            _fit(reward_model, loop, _holding(loop.fresh_learner(), policy_net, value_net))
        if reward_model is not None:
            judge = judge_of(reward_model, sequence_length, policy_net.input_dim, longest)
            env = make_env(JudgedTask(played, judge), episodes_per_iteration, max_episode_steps=longest)
        history.trainer = trainer = _trainer(ppo, env, seed, run_dir)
        if not trainer.record.iterations:
            trainer.learner = _holding(trainer.loop.fresh_learner(), policy_net, value_net)
        trainer.train(max_episodes=num_iterations * episodes_per_iteration, callback=history.hear)
        _give_back(trainer.learner, policy_net, value_net)
    return history


def _fit(reward_model: SequenceReward | None, loop: Loop, learner: PPOState) -> None:
    """Fit the reward model to what the task gives in episodes of the policy."""
    assert isinstance(reward_model, SequenceNetwork)
    runner, env, seed, policy = loop.runner, loop.env, loop.settings.seed, loop.algorithm.policy(learner)
    carry, rows = runner.start(loop.arrays, env, policy, stream(seed, "reward start"), Course()), []
    collect = runner.whole(partial(runner.collect, env=env, num_steps=loop.num_steps, threshold=loop.threshold))
    for number in range(ROLLOUTS):
        keys = RolloutKeys(*(stream(seed, f"reward {number} {name}") for name in RolloutKeys._fields))
        rows.append(collect(algorithm=loop.arrays, policy=policy, carry=carry, keys=keys)[1].steps)
    steps = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *rows)
    fit_reward(reward_model, steps, stream(seed, "reward"))


def _check_networks(policy_net: object, value_net: object) -> None:
    """Refuse networks that cannot be trained together."""
    for name, net in (("policy_net", policy_net), ("value_net", value_net)):
        if not isinstance(net, SequenceNetwork):
            kind = "TransformerPolicyNetwork" if name == "policy_net" else "TransformerValueNetwork"
            raise LudusError(f"{name}={type(net).__name__}: must be a {kind}")
    assert isinstance(policy_net, SequenceNetwork) and isinstance(value_net, SequenceNetwork)
    if value_net.outputs != 1:
        raise LudusError(f"value_net: must have one output, as a TransformerValueNetwork has; got {value_net.outputs}")
    if value_net.input_dim != policy_net.input_dim:
        raise LudusError(
            f"value_net: takes states of length {value_net.input_dim}, but policy_net of length {policy_net.input_dim}"
        )


def _check_minibatches(minibatches: int, episodes_per_iteration: int) -> None:
    if minibatches > episodes_per_iteration:
        raise LudusError(
            f"minibatches={minibatches}: must be at most episodes_per_iteration={episodes_per_iteration}, since each "
            "has whole episodes"
        )


def _check_counts(least: int, **counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise LudusError(f"{name}={value}: must be an integer of at least {least}")


def _task(policy_net: SequenceNetwork, task: Environment | None, episode_length: int | None) -> Environment:
    """Return the task, whose states must be what the policy takes."""
    inputs, actions = policy_net.input_dim, policy_net.outputs
    task = vector_toy(inputs, actions) if task is None else task
    if not isinstance(task, Environment):
        raise LudusError(f"task={task!r}: must be a SequenceTask or another ludus.Environment")
    if isinstance(task, SequenceTask) and episode_length is not None:
        task = replace(task, horizon=episode_length)
    space, choice = task.observation_space, task.action_space
    if not (isinstance(space, Box) and space.shape == (inputs,)):
        raise LudusError(f"task: shows {space}; policy_net takes vectors of length {inputs}")
    if not (isinstance(choice, Discrete) and choice.n == actions):
        raise LudusError(f"task: its actions are {choice}; policy_net chooses among {actions}")
    return task


def _longest(task: Environment, episode_length: int | None) -> int:
    """Return how many steps an episode has at most."""
    own = task.horizon if isinstance(task, SequenceTask) else task.max_episode_steps
    longest = own if episode_length is None else episode_length
    if longest is None:
        raise LudusError("episode_length=None: the task's episodes may go on for ever; give a number of steps")
    return longest


def _network(
    policy_net: SequenceNetwork, value_net: SequenceNetwork, sequence_length: int, longest: int
) -> NetworkBuilder:
    """Return the builder of an actor-critic that the networks fit into."""
    # Where the window holds all that is seen of an episode, its end included, the sliding one is as good.
    is_strict = longest >= sequence_length
    policy, value = (
        replace(net.seeing(sequence_length).sizes, strict_window=is_strict) for net in (policy_net, value_net)
    )
    return policy if policy == value else TwoTransformers(policy, value)


def _trainer(ppo: PPO, env: AnyEnv, seed: int, run_dir: str | Path | None) -> Trainer:
    """Return the trainer of a new run, or of the one that the folder holds."""
    if run_dir is not None and (Path(run_dir) / IDENTITY).exists():
        return Trainer.resume(run_dir, algorithm=ppo, env=env)
    settings = Settings(
        seed=seed,
        collect="episodes",
        eval_frequency=0,
        eval_episodes_final=0 if run_dir is None else 100,
        log_frequency=1,
        loguru=True,
        verbose=False,
    )
    return Trainer(ppo, env, settings, run_dir=run_dir)


def _parts(module: ActorCritic, policy_net: SequenceNetwork, value_net: SequenceNetwork) -> list[tuple[Any, Any]]:
    """Return the layers of an actor-critic beside those of the networks."""
    assert isinstance(module, MemoryActorCritic)
    units = module.actor_memory, module.critic_memory
    actor, critic = (unit.transformer if isinstance(unit, WindowMemory) else unit for unit in units)
    return [
        (actor, policy_net.memory),
        (module.actor_head.layer, policy_net.head),
        (critic, value_net.memory),
        (module.critic_head, value_net.head),
    ]


def _holding(learner: PPOState, policy_net: SequenceNetwork, value_net: SequenceNetwork) -> PPOState:
    """Return a learner with the parameters of the networks."""
    module = learner.network.merge(learner.parameters)
    for ours, theirs in _parts(module, policy_net, value_net):
        nnx.update(ours, nnx.state(theirs, nnx.Param))
    return replace(learner, parameters=learner.network.parameters_of(module))


def _give_back(learner: PPOState, policy_net: SequenceNetwork, value_net: SequenceNetwork) -> None:
    """Let the networks have what was learnt."""
    module = learner.network.merge(learner.parameters)
    for ours, theirs in _parts(module, policy_net, value_net):
        nnx.update(theirs, nnx.state(ours, nnx.Param))


@contextlib.contextmanager
def _on(device: jax.Device) -> Generator[None]:
    """Let programs of all threads run on a device."""
    before = jax.config.values["jax_default_device"]
    try:
        if device != default_device():
            jax.config.update("jax_default_device", device)
        yield
    finally:
        jax.config.update("jax_default_device", before)
