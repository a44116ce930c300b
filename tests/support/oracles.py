"""The mathematics of `ludus` once more, in float64 NumPy and written another way: what the tests measure against.

Nothing here shares a formula's code with `src`: advantages are double sums over an episode's steps, gradients are
central differences of the loss, minibatches are weights over the whole rollout.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


def segment_end(ended: Array, t: int) -> int:
    """First index at or after `t` where the episode ends; the last index if it does not."""
    return next((k for k in range(t, len(ended)) if ended[k]), len(ended) - 1)


def advantages(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, lam: float
) -> Array:
    """Advantages `[T, B]`: for each step, the sum of (gamma lambda)^k delta over what is left of its episode."""
    reward, value, next_value = (np.asarray(x, np.float64) for x in (reward, value, next_value))
    deltas = reward + gamma * next_value * (1 - np.asarray(terminated, np.float64)) - value
    result = np.zeros_like(deltas)
    for t, b in np.ndindex(deltas.shape):
        last = segment_end(terminated[:, b] | truncated[:, b], t)
        result[t, b] = sum((gamma * lam) ** (k - t) * deltas[k, b] for k in range(t, last + 1))
    return result


def discounted_returns(reward: Array, ended: Array, start: Array, gamma: float) -> Array:
    """Discounted sums `[T, B]` of the rewards of the running episode so far; `start` is what came before row 0."""
    reward = np.asarray(reward, np.float64)
    result = np.zeros_like(reward)
    for t, b in np.ndindex(reward.shape):
        first = max((k + 1 for k in range(t) if ended[k, b]), default=0)
        result[t, b] = sum(gamma ** (t - k) * reward[k, b] for k in range(first, t + 1))
        if first == 0:
            result[t, b] += gamma ** (t + 1) * float(start[b])
    return result


def clipped_surrogate(ratio: float, advantage: float, epsilon: float) -> float:
    """PPO's loss of one sample, by cases."""
    if advantage >= 0:
        return -min(ratio, 1 + epsilon) * advantage
    return -max(ratio, 1 - epsilon) * advantage


def value_loss(value: float, old_value: float, target: float, epsilon: float | None) -> float:
    """Half the squared error; with clipping, never less than that of the value kept within epsilon of the old one."""
    error = (value - target) ** 2
    if epsilon is None:
        return error / 2
    kept = min(max(value, old_value - epsilon), old_value + epsilon)
    return max(error, (kept - target) ** 2) / 2


def categorical_log_probabilities(logits: Array) -> Array:
    """Log-softmax over the last axis; -inf stays -inf."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def categorical_entropy(logits: Array) -> Array:
    """Entropy in nats, as the mean surprise over the actions that can happen."""
    log_p = categorical_log_probabilities(logits)
    return -np.sum(np.exp(log_p) * np.where(log_p == -np.inf, 0.0, log_p), axis=-1)


def categorical_kl(logits: Array, other: Array) -> Array:
    """KL(p || q); infinite where q forbids what p allows."""
    log_p, log_q = categorical_log_probabilities(logits), categorical_log_probabilities(other)
    possible = log_p > -np.inf
    gap = np.where(possible, log_p, 0.0) - np.where(possible, log_q, 0.0)
    return np.sum(np.exp(log_p) * gap, axis=-1)


def gaussian_log_prob(mean: Array, log_std: Array, action: Array) -> Array:
    """Log of the product of normal densities over the last axis."""
    mean, log_std, action = (np.asarray(x, np.float64) for x in (mean, log_std, action))
    variance = np.exp(2 * log_std)
    return np.sum(-((action - mean) ** 2) / (2 * variance) - 0.5 * np.log(2 * math.pi * variance), axis=-1)


def gaussian_entropy(log_std: Array) -> Array:
    """Differential entropy in nats: log sqrt(2 pi e variance) for each dimension."""
    return np.sum(0.5 * np.log(2 * math.pi * math.e * np.exp(2 * np.asarray(log_std, np.float64))), axis=-1)


def gaussian_kl(mean: Array, log_std: Array, other_mean: Array, other_log_std: Array) -> Array:
    """KL between products of normals."""
    p, log_p, q, log_q = (np.asarray(x, np.float64) for x in (mean, log_std, other_mean, other_log_std))
    return np.sum(log_q - log_p + (np.exp(2 * log_p) + (p - q) ** 2) / (2 * np.exp(2 * log_q)) - 0.5, axis=-1)


@dataclass
class Statistics:
    """Count, mean and variance of everything seen: the data itself is not kept, so merging is done by moments."""

    count: float
    mean: Array
    variance: Array

    @classmethod
    def of(cls, stats: Any) -> "Statistics":
        """Take over the statistics of a learner's state."""
        return cls(float(stats.count), np.asarray(stats.mean, np.float64), np.asarray(stats.variance, np.float64))

    def after(self, x: Array) -> "Statistics":
        """Take in rows `[N, ...]`, by raw first and second moments."""
        x = np.asarray(x, np.float64)
        if len(x) == 0:
            return self
        total = self.count + len(x)
        mean = (self.count * self.mean + x.sum(axis=0)) / total
        second = self.count * (self.variance + self.mean**2) + (x**2).sum(axis=0)
        return Statistics(total, mean, second / total - mean**2)

    @property
    def deviation(self) -> Array:
        """Standard deviation, kept from zero as the code says."""
        return np.sqrt(self.variance + 1e-8)


class Model:
    """The MLP and GRU actor-critics in float64, driven by names and shapes of parameters alone."""

    def __init__(self, network: Any):
        """Read names and shapes; the flat vector holds the parameters in their order."""
        self.names, self.shapes, self.has_memory = network.names, network.shapes, network.has_memory
        self.offsets = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]

    def by_name(self, theta: Array) -> dict[str, Array]:
        """Return the parameters of a flat vector by name."""
        parts = np.split(theta, self.offsets)
        return {n: p.reshape(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def outputs(self, theta: Array, features: Array, judged: Array | None = None) -> tuple[Array, Array | None, Array]:
        """Return the policy head's outputs, log standard deviations (None for a categorical), and values.

        `judged` are the features that the critic sees, if they are others than the actor's.
        """
        p = self.by_name(theta)
        policy = _dense(p, "actor_head/layer", _torso(p, "actor_torso", features))
        judged = features if judged is None else judged
        value = _dense(p, "critic_head", _torso(p, "critic_torso", judged))[..., 0]
        return policy, p.get("actor_head/log_std"), value

    def _unit(self, part: str) -> str:
        """Return how the names of a part's memory begin; a shared one stands for both."""
        return "" if "from_input/kernel" in self.names else f"{part}_memory/"

    def through_time(
        self, theta: Array, memory: Array, obs: Array, ended: Array, part: str = "actor"
    ) -> tuple[Array, Array]:
        """Features `[T, B, ...]` and the memory after each step, started afresh after each episode's end."""
        if not self.has_memory:
            return obs, np.zeros((*obs.shape[:2], 0))
        p, rows = self.by_name(theta), []
        for obs_t, ended_t in zip(obs, ended, strict=True):
            memory = gru(p, memory, obs_t, self._unit(part))
            rows.append(memory)
            memory = np.where(ended_t[:, None], 0.0, memory)
        return np.stack(rows), np.stack(rows)

    def one_more(self, theta: Array, memory: Array, obs: Array, part: str = "actor") -> Array:
        """Features of `obs` seen from the given memories."""
        return gru(self.by_name(theta), memory, obs, self._unit(part)) if self.has_memory else obs


def gru(p: dict[str, Array], memory: Array, x: Array, unit: str = "") -> Array:
    """One step of a gated recurrent unit; gates lie in the order reset, update, candidate."""
    size = memory.shape[-1]
    from_x, from_h = _dense(p, f"{unit}from_input", x), _dense(p, f"{unit}from_memory", memory)
    reset = _sigmoid(from_x[..., :size] + from_h[..., :size])
    keep = _sigmoid(from_x[..., size : 2 * size] + from_h[..., size : 2 * size])
    candidate = np.tanh(from_x[..., 2 * size :] + reset * from_h[..., 2 * size :])
    return keep * memory + (1 - keep) * candidate


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _dense(p: dict[str, Array], name: str, x: Array) -> Array:
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def _torso(p: dict[str, Array], name: str, x: Array) -> Array:
    for i in range(sum(key.startswith(name) and key.endswith("kernel") for key in p)):
        x = np.tanh(_dense(p, f"{name}/layers/{i}", x))
    return x


@dataclass
class Update:
    """What one PPO update should leave behind."""

    parameters: Array
    mu: Array
    nu: Array
    metrics: dict[str, float]
    margin: float
    """How close any sample came to the edge of a clip, where the loss has two slopes."""
    observations: Statistics | None
    returns: Statistics | None
    rewards: Statistics | None
    discounted: Array
    coefficient: float | None = None
    """The weight of the penalty on divergence in the next update."""
    reference_memory: Array | None = None
    """The memory after the last step, of a reference that has one of its own."""


def flat(parameters: Any) -> Array:
    """Return a tuple of parameters as one float64 vector."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in parameters])


class PPOReference:
    """One PPO update of a tanh network, in float64.

    `algorithm` holds plain numbers. A minibatch is an array of weights `[T, B]`, 1 for the rows in it.
    """

    def __init__(self, algorithm: Any, state: Any, rollout: Any):
        """Prepare everything that is computed once in an update."""
        self.algorithm, self.state, self.model = algorithm, state, Model(state.network)
        self.theta = flat(state.parameters)
        steps = rollout.steps
        self.valid = np.ones(steps.reward.shape, bool) if steps.valid is None else np.asarray(steps.valid)
        self.terminated, self.truncated = np.asarray(steps.terminated), np.asarray(steps.truncated)
        self.ended = self.terminated | self.truncated
        self.raw_obs = np.asarray(steps.obs, np.float64)
        self.memory = np.asarray(rollout.memory, np.float64) if self.model.has_memory else np.zeros(0)
        own = np.asarray(state.critic_memory, np.float64)
        self.critic_memory = self.memory if state.network.shares_memory else own * (not rollout.is_start)
        self.action = np.asarray(steps.extras["sample"])
        self.old_log_prob = np.asarray(steps.extras["log_prob"], np.float64)
        self.obs, next_obs = self._scaled_obs(steps.obs), self._scaled_obs(steps.next_obs)
        reward = self._scaled_reward(np.asarray(steps.reward, np.float64))
        self._estimate(reward, next_obs)
        self._find_reference(rollout)
        share_left = 1 - float(rollout.progress) if algorithm.anneal_learning_rate else 1.0
        self.learning_rate = algorithm.learning_rate * share_left

    def _scaled_obs(self, obs: Array) -> Array:
        obs = np.asarray(obs, np.float64)
        if self.state.observations is None:
            return obs
        stats = Statistics.of(self.state.observations)
        return np.clip((obs - stats.mean) / stats.deviation, -10, 10)

    def _scaled_reward(self, reward: Array) -> Array:
        self.rewards, self.discounted = None, np.asarray(self.state.discounted, np.float64)
        if self.state.rewards is None:
            return reward
        totals = discounted_returns(reward, self.ended, self.discounted, self.algorithm.gamma)
        self.rewards = Statistics.of(self.state.rewards).after(totals[self.valid])
        self.discounted = np.where(self.ended[-1], 0.0, totals[-1])
        return np.clip(reward / self.rewards.deviation, -10, 10)

    def _estimate(self, reward: Array, next_obs: Array) -> None:
        features, after = self.model.through_time(self.theta, self.critic_memory, self.obs, self.ended, "critic")
        self.value = self.model.outputs(self.theta, features)[2]
        next_value = self.model.outputs(self.theta, self.model.one_more(self.theta, after, next_obs, "critic"))[2]
        old = None if self.state.returns is None else Statistics.of(self.state.returns)
        mean, scale = (0.0, 1.0) if old is None else (old.mean, old.deviation)
        raw_value, raw_next = mean + scale * self.value, mean + scale * next_value
        ends = self.terminated, self.truncated
        self.advantage = advantages(reward, raw_value, raw_next, *ends, self.algorithm.gamma, self.algorithm.gae_lambda)
        self.target, self.returns = self.advantage + raw_value, None
        if old is not None:
            self.returns = old.after(self.target[self.valid])
            # A rollout is measured by the statistics before it, if there are any and they are not dwarfed by it.
            used = old if old.count and self.returns.deviation <= 2 * old.deviation else self.returns
            self.target = (self.target - used.mean) / used.deviation

    def _find_reference(self, rollout: Any) -> None:
        """Compute what the policy is to stay near to: outputs of the last layer of the actor `[T, B, ...]`."""
        algorithm, held = self.algorithm, self.state.penalty
        self.coefficient, self.reference_memory, self.reference = None, None, None
        if algorithm.kl_coef is None and algorithm.kl_target is None:
            return
        self.coefficient = algorithm.kl_coef if algorithm.kl_target is None else float(held.coefficient)
        theta, memory, obs = self.theta, self.memory, self.obs
        if algorithm.kl_reference == "start":
            theta, obs = flat(held.reference.parameters), np.asarray(rollout.steps.obs, np.float64)
            if held.reference.observations is not None:
                stats = Statistics.of(held.reference.observations)
                obs = np.clip((obs - stats.mean) / stats.deviation, -10, 10)
            if self.model.has_memory:
                memory = np.asarray(held.memory, np.float64) * (not rollout.is_start)
        features, after = self.model.through_time(theta, memory, obs, self.ended)
        self.reference = self.model.outputs(theta, features)[:2]
        if algorithm.kl_reference == "start" and self.model.has_memory:
            self.reference_memory = np.where(self.ended[-1][:, None], 0.0, after[-1])

    def divergence(self, theta: Array) -> Array:
        """KL(reference || policy) at every step, but KL(policy || reference) for a reference of the start."""
        features, _ = self.model.through_time(theta, self.memory, self.obs, self.ended)
        policy, log_std, _ = self.model.outputs(theta, features)
        pair = [self.reference, (policy, log_std)]
        if self.algorithm.kl_reference == "start":
            pair.reverse()
        (p, p_std), (q, q_std) = pair
        return categorical_kl(p, q) if log_std is None else gaussian_kl(p, p_std, q, q_std)

    def evaluated(self, theta: Array) -> tuple[Array, Array, Array]:
        """Log-probability of each action taken, entropy and value, all `[T, B]`."""
        features, _ = self.model.through_time(theta, self.memory, self.obs, self.ended)
        judged, _ = self.model.through_time(theta, self.critic_memory, self.obs, self.ended, "critic")
        policy, log_std, value = self.model.outputs(theta, features, judged)
        if log_std is not None:
            log_prob = gaussian_log_prob(policy, log_std, self.action)
            return log_prob, np.broadcast_to(gaussian_entropy(log_std), log_prob.shape), value
        log_probabilities = categorical_log_probabilities(policy)
        log_prob = np.take_along_axis(log_probabilities, self.action[..., None], -1)[..., 0]
        return log_prob, categorical_entropy(policy), value

    def losses(self, theta: Array, weight: Array) -> dict[str, float]:
        """Every term of the loss, and the total, over the rows of one minibatch."""
        algorithm = self.algorithm
        log_prob, entropy, value = self.evaluated(theta)
        rows = weight > 0
        log_ratio = (log_prob - self.old_log_prob)[rows]
        ratio = np.exp(log_ratio)
        advantage = self.advantage[rows] - self.advantage[rows].mean()
        advantage = advantage / (advantage.std() + 1e-8)
        surrogate = [clipped_surrogate(r, a, algorithm.clip_epsilon) for r, a in zip(ratio, advantage, strict=True)]
        triples = zip(value[rows], self.value[rows], self.target[rows], strict=True)
        terms = {
            "policy_loss": np.mean(surrogate),
            "value_loss": np.mean([value_loss(*triple, algorithm.value_clip_epsilon) for triple in triples]),
            "entropy": entropy[rows].mean(),
            "approx_kl": np.mean(ratio - 1 - log_ratio),
            "clip_fraction": np.mean(np.abs(ratio - 1) > algorithm.clip_epsilon),
        }
        total = terms["policy_loss"] + algorithm.value_coef * terms["value_loss"]
        if self.coefficient is not None:
            terms["kl_penalty"] = self.coefficient * self.divergence(theta)[rows].mean()
            total += terms["kl_penalty"]
        return terms | {"total_loss": total - algorithm.entropy_coef * terms["entropy"]}

    def margin(self, theta: Array, weight: Array) -> float:
        """Distance of the nearest sample of a minibatch to an edge of a clip, where the loss has two slopes."""
        log_prob, _, value = (x[weight > 0] for x in self.evaluated(theta))
        ratio = np.exp(log_prob - self.old_log_prob[weight > 0])
        distances = [np.abs(np.abs(ratio - 1) - self.algorithm.clip_epsilon)]
        epsilon = self.algorithm.value_clip_epsilon
        if epsilon is not None:
            old, target = self.value[weight > 0], self.target[weight > 0]
            is_outside = np.abs(value - old) > epsilon
            kept = np.clip(value, old - epsilon, old + epsilon)
            distances.append(np.abs(np.abs(value - old) - epsilon))
            distances.append(np.abs(np.abs(value - target) - np.abs(kept - target))[is_outside])
        return float(np.concatenate(distances).min())

    def gradient(self, theta: Array, weight: Array, step: float = 1e-6) -> Array:
        """Central differences of the total loss, parameter by parameter."""
        result = np.zeros_like(theta)
        for i in range(len(theta)):
            nudge = np.zeros_like(theta)
            nudge[i] = step
            above, below = self.losses(theta + nudge, weight), self.losses(theta - nudge, weight)
            result[i] = (above["total_loss"] - below["total_loss"]) / (2 * step)
        return result

    def update(self, minibatches: list[Array]) -> Update:
        """Adam on each minibatch in turn, until the KL estimate is too large."""
        algorithm, theta = self.algorithm, self.theta.copy()
        optimizer = self.state.optimizer
        mu, nu, count = np.asarray(optimizer.mu, np.float64), np.asarray(optimizer.nu, np.float64), int(optimizer.count)
        seen: list[dict[str, float]] = []
        updates, margin = 0, np.inf
        for weight in minibatches:
            terms, margin = self.losses(theta, weight), min(margin, self.margin(theta, weight))
            gradient = self.gradient(theta, weight)
            norm = np.linalg.norm(gradient)
            seen.append(terms | {"gradient_norm": norm})
            if algorithm.target_kl is not None and terms["approx_kl"] > 1.5 * algorithm.target_kl:
                break
            gradient = gradient * min(1.0, algorithm.max_grad_norm / (norm + 1e-8))
            count, updates = count + 1, updates + 1
            mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
            direction = mu / (1 - 0.9**count) / (np.sqrt(nu / (1 - 0.999**count)) + 1e-5)
            theta = theta - self.learning_rate * direction
        metrics = {name: float(np.mean([row[name] for row in seen])) for name in seen[0]} | {"updates": updates}
        error, target = (self.target - self.value)[self.valid], self.target[self.valid]
        metrics |= {"explained_variance": 1 - error.var() / target.var(), "learning_rate": self.learning_rate}
        observations = self.state.observations
        observations = observations and Statistics.of(observations).after(self.raw_obs[self.valid])
        made = Update(theta, mu, nu, metrics, margin, observations, self.returns, self.rewards, self.discounted)
        if self.coefficient is not None:
            metrics |= {"kl": self.divergence(theta)[self.valid].mean(), "kl_coef": self.coefficient}
            target = algorithm.kl_target
            if target is not None:
                made.margin = min(margin, *(abs(metrics["kl"] - factor * target) for factor in (1.5, 1 / 1.5)))
            made.coefficient, made.reference_memory = self.next_coefficient(metrics["kl"]), self.reference_memory
        return made

    def next_coefficient(self, kl: float) -> float:
        """Twice or half of what it was, if the divergence was far from its target."""
        target = self.algorithm.kl_target
        if target is None or target / 1.5 <= kl <= 1.5 * target:
            return self.coefficient
        return self.coefficient * (2.0 if kl > target else 0.5)
