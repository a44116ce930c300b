"""One SAC update in float64 NumPy with backpropagation by hand: what the tests of SAC measure against.

Nothing here shares a formula's code with `src`: the density is that of the squashed action by logarithms of cosh,
slopes are written out, and Adam is two lines.
"""

import decimal
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Parameters = dict[str, Array]

LOG_STD_BOUNDS = (-20.0, 2.0)


def tanh_gaussian_log_prob(mean: Array, log_std: Array, unsquashed: Array, digits: int = 50) -> float:
    """Log-density of tanh(u) for one u `[d]`, straight from its definition, in `digits` decimals."""
    with decimal.localcontext() as context:
        context.prec = digits
        pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510")
        total = decimal.Decimal(0)
        for numbers in zip(mean, log_std, unsquashed, strict=True):
            m, s, u = (decimal.Decimal(float(x)) for x in numbers)
            density = (-(((u - m) / s.exp()) ** 2) / 2).exp() / (s.exp() * (2 * pi).sqrt())
            tanh = (u.exp() - (-u).exp()) / (u.exp() + (-u).exp())
            total += (density / (1 - tanh**2)).ln()
        return float(total)


def by_name(names: list[str], leaves: Any, index: Any = ...) -> Parameters:
    """Return parameters by name in float64; `index` picks one of several that are stacked."""
    return {name: np.asarray(leaf, np.float64)[index] for name, leaf in zip(names, leaves, strict=True)}


@dataclass
class Perceptron:
    """Hidden layers and any number of linear heads on top; remembers a forward pass and takes it back."""

    p: Parameters
    activation: str
    heads: tuple[str, ...]
    inputs: list[Array] = field(default_factory=list)
    kink: float = np.inf
    """How close any unit came to the edge of a ReLU, where it has two slopes."""

    def __post_init__(self) -> None:
        """Find the hidden layers by their names, wherever the module keeps them."""
        self.layers = sorted(
            {name.rsplit("/", 1)[0] for name in self.p if name.rsplit("/", 1)[0] not in self.heads},
            key=lambda name: [int(part) if part.isdigit() else part for part in name.split("/")],
        )

    def forward(self, x: Array) -> list[Array]:
        """Return each head's output."""
        self.inputs = [x]
        for name in self.layers:
            z = self.inputs[-1] @ self.p[f"{name}/kernel"] + self.p[f"{name}/bias"]
            if self.activation == "relu":
                self.kink = min(self.kink, float(np.abs(z).min()))
            self.inputs.append(np.tanh(z) if self.activation == "tanh" else np.maximum(z, 0.0))
        return [self.inputs[-1] @ self.p[f"{name}/kernel"] + self.p[f"{name}/bias"] for name in self.heads]

    def backward(self, slopes: list[Array]) -> tuple[Parameters, Array]:
        """Slopes by the heads' outputs to slopes by parameters and by the input."""
        gradient: Parameters = {}
        by_features = np.zeros_like(self.inputs[-1])
        for name, slope in zip(self.heads, slopes, strict=True):
            gradient[f"{name}/kernel"] = self.inputs[-1].T @ slope
            gradient[f"{name}/bias"] = slope.sum(axis=0)
            by_features = by_features + slope @ self.p[f"{name}/kernel"].T
        for i in reversed(range(len(self.layers))):
            name, out = self.layers[i], self.inputs[i + 1]
            slope = by_features * ((1 - out**2) if self.activation == "tanh" else (out > 0))
            gradient[f"{name}/kernel"] = self.inputs[i].T @ slope
            gradient[f"{name}/bias"] = slope.sum(axis=0)
            by_features = slope @ self.p[f"{name}/kernel"].T
        return gradient, by_features


def sampled(actor: Perceptron, obs: Array, noise: Array) -> tuple[Array, Array, Array, Array]:
    """Action, its log-probability, the log standard deviation, and what that was before it was held in its bounds."""
    mean, raw = actor.forward(obs)
    log_std = np.clip(raw, *LOG_STD_BOUNDS)
    u = mean + np.exp(log_std) * noise
    log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)
    log_prob = -(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2 + 2 * log_cosh
    return np.tanh(u), log_prob.sum(axis=-1), log_std, raw


def adam(p: Parameters, mu: Parameters, nu: Parameters, count: int, gradient: Parameters, rate: float) -> None:
    """One step, in place; `count` includes it."""
    for name, g in gradient.items():
        mu[name] = 0.9 * mu[name] + 0.1 * g
        nu[name] = 0.999 * nu[name] + 0.001 * g**2
        p[name] = p[name] - rate * (mu[name] / (1 - 0.9**count)) / (np.sqrt(nu[name] / (1 - 0.999**count)) + 1e-8)


@dataclass
class Learnt:
    """Parameters and Adam's moments of one of the things that are learnt."""

    p: Parameters
    mu: Parameters
    nu: Parameters
    count: int


class SACReference:
    """The learner's half of a SAC state; `step` makes one gradient step.

    `algorithm` holds plain numbers. Critics are learnt as two networks of their own.
    """

    def __init__(self, algorithm: Any, state: Any):
        """Take the state over."""
        self.algorithm, self.metrics, self.margin = algorithm, [], np.inf
        learner, networks = state.learner, state.networks
        parameters, optimizers = learner.parameters, learner.optimizers
        self.activation = algorithm.network.activation

        def learnt(names: list[str], leaves: Any, optimizer: Any, index: Any = ...) -> Learnt:
            parts = (by_name(names, x, index) for x in (leaves, optimizer.mu, optimizer.nu))
            return Learnt(*parts, int(optimizer.count))

        self.actor = learnt(networks.actor.names, parameters.actor, optimizers.actor)
        critics = [learnt(networks.critic.names, parameters.critics, optimizers.critics, i) for i in (0, 1)]
        self.critics = critics
        self.targets = [by_name(networks.critic.names, learner.target_critics, i) for i in (0, 1)]
        alpha = optimizers.log_alpha
        self.log_alpha = learnt(["log_alpha"], [parameters.log_alpha], Single(alpha))

    def q(self, p: Parameters, obs: Array, action: Array) -> tuple[Array, Perceptron]:
        """Value of actions `[n]`, and the network that can take it back."""
        network = Perceptron(p, self.activation, ("head",))
        (value,) = network.forward(np.concatenate([obs, action], axis=-1))
        self.margin = min(self.margin, network.kink)
        return value[:, 0], network

    def step(self, drawn: Any, noise: Array) -> None:
        """One gradient step on a batch, whose observations are as the networks see them."""
        algorithm = self.algorithm
        obs, next_obs, action, reward = (
            np.asarray(x, np.float64) for x in (drawn.obs, drawn.next_obs, drawn.action, drawn.reward)
        )
        weight = np.asarray(drawn.weight, np.float64)
        share = weight / max(weight.sum(), 1.0)
        noise, rate = np.asarray(noise, np.float64), algorithm.learning_rate
        alpha = float(np.exp(self.log_alpha.p["log_alpha"])) if algorithm.automatic_alpha else algorithm.alpha

        network = Perceptron(self.actor.p, self.activation, ("mean", "log_std"))
        next_action, next_log_prob, _, _ = sampled(network, next_obs, noise[0])
        self.margin = min(self.margin, network.kink)
        next_values = [self.q(p, next_obs, next_action)[0] for p in self.targets]
        target = np.where(
            drawn.terminated, reward, reward + algorithm.gamma * (np.minimum(*next_values) - alpha * next_log_prob)
        )

        losses, values, squares = [], [], 0.0
        for critic in self.critics:
            value, network = self.q(critic.p, obs, action)
            losses.append(0.5 * np.sum(share * (value - target) ** 2))
            values.append(np.sum(share * value))
            gradient, _ = network.backward([(share * (value - target))[:, None]])
            squares += sum(float(np.sum(g**2)) for g in gradient.values())
            critic.count += 1
            adam(critic.p, critic.mu, critic.nu, critic.count, gradient, rate)

        network = Perceptron(self.actor.p, self.activation, ("mean", "log_std"))
        new_action, log_prob, log_std, raw = sampled(network, obs, noise[1])
        answers = [self.q(critic.p, obs, new_action) for critic in self.critics]
        edge = min(float(np.abs(raw - bound).min()) for bound in LOG_STD_BOUNDS)
        self.margin = min(self.margin, network.kink, edge, float(np.abs(answers[0][0] - answers[1][0]).min()))
        lower = np.minimum(answers[0][0], answers[1][0])
        policy_loss = np.sum(share * (alpha * log_prob - lower))
        by_action = np.zeros_like(new_action)
        for value, critic_network in answers:
            chosen = (value == lower) * share
            by_action -= critic_network.backward([chosen[:, None]])[1][:, obs.shape[1] :]
        by_u = by_action * (1 - new_action**2) + alpha * share[:, None] * 2 * new_action
        by_log_std = (raw == log_std) * (by_u * np.exp(log_std) * noise[1] - alpha * share[:, None])
        gradient, _ = network.backward([by_u, by_log_std])
        squares += sum(float(np.sum(g**2)) for g in gradient.values())
        self.actor.count += 1
        adam(self.actor.p, self.actor.mu, self.actor.nu, self.actor.count, gradient, rate)

        mean_log_prob, alpha_loss = np.sum(share * log_prob), 0.0
        if algorithm.automatic_alpha:
            wanted = -action.shape[1] if algorithm.target_entropy is None else algorithm.target_entropy
            alpha_loss = -alpha * (mean_log_prob + wanted)
            squares += alpha_loss**2
            own = self.log_alpha
            own.count += 1
            adam(own.p, own.mu, own.nu, own.count, {"log_alpha": np.asarray(alpha_loss)}, rate)

        for target_p, critic in zip(self.targets, self.critics, strict=True):
            for name in target_p:
                target_p[name] = (1 - algorithm.tau) * target_p[name] + algorithm.tau * critic.p[name]
        self.metrics.append(
            {
                "critic_loss": sum(losses) / 2,
                "policy_loss": policy_loss,
                "alpha_loss": alpha_loss,
                "alpha": alpha,
                "entropy": -mean_log_prob,
                "q_value": sum(values) / 2,
                "gradient_norm": np.sqrt(squares),
            }
        )


@dataclass
class Single:
    """Adam's state of one number, as if it were a tuple of one."""

    optimizer: Any

    @property
    def mu(self) -> list[Any]:
        return [self.optimizer.mu]

    @property
    def nu(self) -> list[Any]:
        return [self.optimizer.nu]

    @property
    def count(self) -> Any:
        return self.optimizer.count
