"""A policy and its critic in plain PyTorch, as ludus exports them. This file needs only torch.

    description = json.loads(Path("final_actor.json").read_text())
    actor = Actor(**description)
    actor.load_state_dict(torch.load("final_actor.pth", weights_only=True))
    action = actor(observations)                 # from a batch [n, ...], greedy actions [n, ...]
    action, memory = actor(observations, memory)  # with a memory; the first is actor.initial_memory(n)

Observations of a Dict or Tuple are a dict of tensors by the names in the description, and actions likewise.
"""

import itertools
from typing import Any

import torch
from torch import nn

Leaf = dict[str, Any]
"""What the description says of one part of a space."""
Tensors = torch.Tensor | dict[str, torch.Tensor]
"""One tensor, or several by the names in the description."""
ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
}


def perceptron(sizes: list[int], activation: str) -> nn.Sequential:
    """Return linear layers with an activation between each two."""
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def nature_cnn(channels: int, features: int) -> nn.Sequential:
    """Return the convolutions of Mnih et al. 2015, for images [n, channels, height, width] from 0 to 1."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(features, 512), nn.ReLU(),
    )  # fmt: skip


def unit_bytes(x: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """Return bytes scaled from their bounds to 0 .. 1."""
    low, width = (torch.tensor(leaf[name], device=x.device) for name in ("low", "width"))
    return (x.float() - low) / width


def only_valid(scaled: torch.Tensor, x: torch.Tensor, entries: list[int]) -> torch.Tensor:
    """Return zeros for tokens that are not there: entries of `x` say so, and the entry after its last is always 1."""
    said = torch.cat([x, torch.ones_like(x[:, :1])], 1)[:, entries]
    return torch.where(said > 0.5, scaled, 0.0)


class Encoder(nn.Module):
    """Makes one vector of observations: normalised numbers, scaled bytes, one-hot choices, and features of images."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, observations: list[Leaf], normalized: bool):
        """`observations` describes each leaf of the observation space."""
        super().__init__()
        self.observations = observations
        self.images = nn.ModuleList(
            nature_cnn(leaf["channels"], leaf["features"]) for leaf in observations if leaf["kind"] == "image"
        )
        if normalized:
            size = sum(leaf["size"] for leaf in observations if leaf["kind"] == "numbers")
            self.register_buffer("mean", torch.zeros(size))
            self.register_buffer("variance", torch.ones(size))

    def forward(self, obs: Tensors) -> torch.Tensor:
        """Return [n, outputs]."""
        images, first, vectors = iter(self.images), 0, []
        for leaf in self.observations:
            x = obs[leaf["name"]] if isinstance(obs, dict) else obs
            if leaf["kind"] == "image":
                x = unit_bytes(x, leaf)
                vectors.append(next(images)(x if leaf["channels_first"] else x.permute(0, 3, 1, 2)))
                continue
            x = x.flatten(1) if x.ndim > 1 else x[:, None]
            if leaf["kind"] == "choices":
                counts = [torch.arange(n, device=x.device) + start for n, start in leaf["choices"]]
                vectors.append(torch.cat([x[:, i : i + 1] == count for i, count in enumerate(counts)], 1).float())
                continue
            x = unit_bytes(x, leaf) if leaf["kind"] == "bytes" else x.float()
            if leaf["kind"] == "numbers" and hasattr(self, "mean"):
                rows = slice(first, first + leaf["size"])
                scaled = ((x - self.mean[rows]) / (self.variance[rows] + 1e-8).sqrt()).clamp(-10.0, 10.0)
                x = only_valid(scaled, x, leaf["valid"]) if "valid" in leaf else scaled
                first += leaf["size"]
            vectors.append(x)
        return torch.cat(vectors, 1)


class Network(nn.Module):
    """The part that actor and critic share: an encoder and, if the policy has a memory, a GRU."""

    def __init__(self, observations: list[Leaf], normalized: bool, inputs: int, memory_size: int | None):
        """Build both."""
        super().__init__()
        self.encoder = Encoder(observations, normalized)
        self.memory_size = memory_size
        self.gru = nn.GRUCell(inputs, memory_size) if memory_size else None

    def initial_memory(self, n: int) -> torch.Tensor:
        """Return the memory at the start of `n` episodes."""
        return torch.zeros(n, self.memory_size or 0)

    def features(self, obs: Tensors, memory: torch.Tensor | None) -> torch.Tensor:
        """Return the input of the last layers; with a memory, it is the new memory too."""
        x = self.encoder(obs)
        return x if self.gru is None else self.gru(x, memory)


class Actor(Network):
    """The greedy policy."""

    action_low: torch.Tensor
    action_high: torch.Tensor

    def __init__(
        self,
        observations: list[Leaf],
        normalized: bool,
        inputs: int,
        memory_size: int | None,
        sizes: list[int],
        activation: str,
        actions: list[Leaf],
        squash: bool,
    ):
        """`actions` describes each leaf of the action space; with `squash` numbers go through tanh (SAC)."""
        super().__init__(observations, normalized, inputs, memory_size)
        self.actions, self.squash = actions, squash
        self.actor = perceptron(sizes, activation)
        size = sum(leaf["size"] for leaf in actions if leaf["kind"] == "numbers")
        if size:
            self.register_buffer("action_low", torch.zeros(size))
            self.register_buffer("action_high", torch.zeros(size))

    def forward(
        self, obs: Tensors, memory: torch.Tensor | None = None, action_mask: torch.Tensor | None = None
    ) -> Tensors | tuple[Tensors, torch.Tensor]:
        """Return actions; with a memory, actions and the new memory."""
        features = self.features(obs, memory)
        outputs = self.actor(features)
        if action_mask is not None:
            outputs = outputs.masked_fill(~action_mask, float("-inf"))
        action = self.decode(outputs)
        return action if self.gru is None else (action, features)

    def decode(self, outputs: torch.Tensor) -> Tensors:
        """Return the actions for the outputs of the last layer."""
        actions, number = {}, 0
        parts = outputs.split([leaf["size"] for leaf in self.actions], 1)
        for leaf, x in zip(self.actions, parts, strict=True):
            if leaf["kind"] == "choices":
                sizes, starts = zip(*leaf["choices"], strict=True)
                best = [part.argmax(1) for part in x.split(sizes, 1)]
                x = torch.stack(best, 1) + torch.tensor(starts, device=x.device)
            elif leaf["kind"] == "bits":
                x = (x > 0).long()
            else:
                rows = slice(number, number + leaf["size"])
                x = torch.tanh(x) if self.squash else x
                middle, half = (torch.tensor(leaf[name], device=x.device) for name in ("middle", "half"))
                x, number = (middle + half * x).clamp(self.action_low[rows], self.action_high[rows]), rows.stop
            actions[leaf["name"]] = x.reshape(-1, *leaf["shape"])
        return actions.get("", actions)


class Critic(Network):
    """The value of observations (PPO), in units of the environment's rewards as training clipped them."""

    def __init__(
        self,
        observations: list[Leaf],
        normalized: bool,
        inputs: int,
        memory_size: int | None,
        sizes: list[int],
        activation: str,
    ):
        """Build the layers."""
        super().__init__(observations, normalized, inputs, memory_size)
        self.critic = perceptron(sizes, activation)
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.ones(()))

    def forward(
        self, obs: Tensors, memory: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return values [n]; with a memory, values and the new memory."""
        features = self.features(obs, memory)
        value = self.value_mean + self.value_scale * self.critic(features)[:, 0]
        return value if self.gru is None else (value, features)


class TwinCritic(nn.Module):
    """The value of observations and actions (SAC): the smaller output of two networks."""

    action_low: torch.Tensor
    action_high: torch.Tensor

    def __init__(self, observations: list[Leaf], normalized: bool, sizes: list[int], activation: str, action_size: int):
        """Build the layers."""
        super().__init__()
        self.encoders = nn.ModuleList(Encoder(observations, normalized) for _ in range(2))
        self.critics = nn.ModuleList(perceptron(sizes, activation) for _ in range(2))
        self.register_buffer("action_low", torch.zeros(action_size))
        self.register_buffer("action_high", torch.zeros(action_size))

    def forward(self, obs: Tensors, action: torch.Tensor) -> torch.Tensor:
        """Return values [n] of actions in the units of the environment."""
        half = 0.5 * self.action_high - 0.5 * self.action_low
        middle = 0.5 * self.action_low + 0.5 * self.action_high
        unit = (action.flatten(1) - middle) / torch.where(half > 0, half, 1.0)
        pairs = zip(self.encoders, self.critics, strict=True)
        return torch.stack([critic(torch.cat([encoder(obs), unit], 1))[:, 0] for encoder, critic in pairs]).amin(0)
