"""The losses of SAC with a GRU over sequences, in float64 NumPy, one step of one sequence at a time.

Slopes are central differences along random directions. What the burn-in leaves in a memory is computed once, from the
parameters that slopes are taken at: no slope may reach it.
"""

from typing import Any

import numpy as np
from oracles import gru
from sac_oracles import LOG_STD_BOUNDS, by_name

Array = np.ndarray
Parameters = dict[str, Array]


def _torso(p: Parameters, x: Array) -> Array:
    for i in range(sum(name.startswith("torso") and name.endswith("kernel") for name in p)):
        x = np.tanh(x @ p[f"torso/layers/{i}/kernel"] + p[f"torso/layers/{i}/bias"])
    return x


def _linear(p: Parameters, name: str, x: Array) -> Array:
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


class Sequences:
    """A batch as it was drawn: `[steps, n]`, of which the first `burn_in` steps only fill memories."""

    def __init__(self, drawn: Any, next_obs: Any, size: int):
        """Take over what `draw` returned."""
        past = drawn.obs
        obs, ended = past.obs, past.ended
        self.burn_in = 0 if past.before is None else len(past.before[1])
        if past.before is not None:
            obs, ended = (np.concatenate([a, b]) for a, b in zip(past.before, (obs, ended), strict=True))
        self.obs, self.ended = np.asarray(obs, np.float64), np.asarray(ended)
        self.next_obs = np.asarray(next_obs, np.float64)
        self.action, self.reward = np.asarray(drawn.action, np.float64), np.asarray(drawn.reward, np.float64)
        self.terminated, weight = np.asarray(drawn.terminated), np.asarray(drawn.weight, np.float64)
        self.weight, self.size = weight / max(weight.sum(), 1.0), size

    def warm(self, p: Parameters) -> Array:
        """Return the memory after the burn-in."""
        memory = np.zeros((self.obs.shape[1], self.size))
        for t in range(self.burn_in):
            memory = np.where(self.ended[t][:, None], 0.0, gru(p, memory, self.obs[t]))
        return memory

    def features(self, p: Parameters, memory: Array) -> tuple[Array, Array]:
        """Return what is seen at each step that is learnt from, and of its true successor."""
        now, after = [], []
        for t in range(self.burn_in, len(self.obs)):
            memory = gru(p, memory, self.obs[t])
            now.append(memory)
            after.append(gru(p, memory, self.next_obs[t - self.burn_in]))
            memory = np.where(self.ended[t][:, None], 0.0, memory)
        return np.stack(now), np.stack(after)


def actor(p: Parameters, features: Array, noise: Array) -> tuple[Array, Array]:
    """Return sampled actions and their log-densities."""
    hidden = _torso(p, features)
    mean, log_std = _linear(p, "mean", hidden), np.clip(_linear(p, "log_std", hidden), *LOG_STD_BOUNDS)
    u = mean + np.exp(log_std) * noise
    log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)
    return np.tanh(u), (-(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2 + 2 * log_cosh).sum(axis=-1)


def critic(p: Parameters, features: Array, action: Array) -> Array:
    """Return values."""
    return _linear(p, "head", _torso(p, np.concatenate([features, action], axis=-1)))[..., 0]


class SACMemoryReference:
    """The first gradient step of an update."""

    def __init__(self, algorithm: Any, state: Any, sequences: Sequences, noise: Array):
        """Take the state over and compute the targets."""
        learner, networks = state.learner, state.networks
        self.names = {"actor": networks.actor.names, "critics": networks.critic.names}
        self.actor = by_name(networks.actor.names, learner.parameters.actor)
        self.critics = [by_name(networks.critic.names, learner.parameters.critics, i) for i in (0, 1)]
        targets = [by_name(networks.critic.names, learner.target_critics, i) for i in (0, 1)]
        self.sequences, self.noise = sequences, np.asarray(noise, np.float64)
        self.alpha = float(np.exp(np.float64(learner.parameters.log_alpha)))
        self.warm = [sequences.warm(p) for p in (self.actor, *self.critics)]
        _, after = sequences.features(self.actor, self.warm[0])
        action, log_prob = actor(self.actor, after, self.noise[0])
        values = [critic(p, sequences.features(p, sequences.warm(p))[1], action) for p in targets]
        future = np.where(sequences.terminated, 0.0, np.minimum(*values) - self.alpha * log_prob)
        self.target = sequences.reward + algorithm.gamma * future

    def critic_loss(self, i: int, p: Parameters) -> float:
        """Half the squared error of one critic."""
        features, _ = self.sequences.features(p, self.warm[1 + i])
        return float(
            0.5 * np.sum(self.sequences.weight * (critic(p, features, self.sequences.action) - self.target) ** 2)
        )

    def policy_loss(self, p: Parameters, critics: list[Parameters]) -> tuple[float, float]:
        """The actor's loss against some critics, and the mean log-density."""
        features, _ = self.sequences.features(p, self.warm[0])
        action, log_prob = actor(p, features, self.noise[1])
        values = [critic(q, self.sequences.features(q, self.sequences.warm(q))[0], action) for q in critics]
        weight = self.sequences.weight
        return float(np.sum(weight * (self.alpha * log_prob - np.minimum(*values)))), float(np.sum(weight * log_prob))


def slope(loss: Any, p: Parameters, direction: Parameters, step: float = 1e-5) -> float:
    """Return the derivative of a loss along a direction."""
    above, below = ({name: x + sign * step * direction[name] for name, x in p.items()} for sign in (1, -1))
    return (loss(above) - loss(below)) / (2 * step)
