"""Policies and critics that were never trained but are far from their initial values, for every kind of space."""

import dataclasses
from typing import Any

import jax
import numpy as np
import zoo

import ludus
from ludus.algorithms.critic import Critic
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.policy import Policy
from ludus.networks.encoders import LateFusion, LatentQuery, TokenMLP
from ludus.spaces import Box, Dict, FeatureGroup, grouped
from ludus.types import Spec


def learned(algorithm: Any, spec: Spec, seed: int = 0) -> tuple[Policy, Critic]:
    """Return a policy and the critic of the same state, every number of which is moved by chance."""
    generator = np.random.default_rng(seed)

    def moved(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if leaf.dtype != np.float32:
            return leaf
        if "count" in name:
            return np.float32(100.0)
        noise = generator.normal(size=leaf.shape).astype(np.float32)
        if "variance" in name:
            return np.exp(noise)
        inputs = max(1.0, float(np.prod(leaf.shape[:-1])))  # so that no layer makes numbers much larger
        return np.asarray(leaf) + 0.7 * noise / np.float32(np.sqrt(inputs))

    state = algorithm.init(jax.random.key(seed), spec)
    policy, critic = (
        jax.device_put(jax.tree_util.tree_map_with_path(moved, part))
        for part in (algorithm.policy(state), algorithm.critic(state))
    )
    arrays = as_arrays(algorithm)
    return Policy(arrays, policy, spec, "object:Case"), Critic(arrays, critic, spec, "object:Case")


BYTES = Box(0, 255, (52, 44, 3), "uint8")  # large enough that the convolutions leave more than one place
CHANNELS_FIRST = Box(0, 255, (2, 52, 44), "uint8")
PENDULUM = Spec(Box(-8.0, 8.0, (3,)), Box(-2.0, 2.0, (1,)), 4)
ARM = Spec(Box(-np.inf, np.inf, (5,)), Box((-1.0, 0.0), (3.0, 0.5), (2,)), 4)

BYTES_OF_MANY_BOUNDS = {
    "bits": Box(0, 1, (3, 2), "uint8"),
    "counts": Box((0, 50), (9, 60), (2,), "uint8"),
    "camera": Box(0, 1, (36, 40, 1), "uint8"),
}
BOUNDS = Spec(Dict(BYTES_OF_MANY_BOUNDS), Box((-2.0, -np.inf, 0.0), (5.0, np.inf, np.inf), (3,)), 4)


def space_case(name: str, **options: Any) -> tuple[Policy, Critic, Any]:
    """Return PPO on a case of the zoo, and its environment."""
    env = ludus.make_env(zoo.make(name, "jax"), 4)
    spec = Spec(env.observation_space, env.action_space, 4)
    options = {"normalize_observations": True, "network": ludus.MLP((16, 8), "relu"), **options}
    return *learned(ludus.PPO(**options), spec), env


GROUPS = grouped(
    [
        FeatureGroup("targets", (3, 3), valid=2, ordered=(0,)),
        FeatureGroup("own", (2,)),
        FeatureGroup("decoys", (2, 2), 0),
    ],
    -1,
    1,
)
ENCODED = {
    "mlp": TokenMLP((8,)),
    "lq": LatentQuery(depth=2, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8),
    "wayformer": LateFusion(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8),
}
"""Encoders that read observations of `GROUPS`."""

SAC_OPTIONS = {"replay_size": 256, "network": ludus.MLP((16, 8), "relu")}
NAMED = {
    "ppo continuous": (ludus.PPO(normalize_observations=True), PENDULUM),
    "ppo plain": (ludus.PPO(network=ludus.MLP((), "tanh")), ARM),
    "ppo elu": (ludus.PPO(network=ludus.MLP((8, 8), "elu")), ARM),
    "ppo gelu": (ludus.PPO(network=ludus.MLP((8, 8), "gelu")), ARM),
    "ppo apart": (ludus.PPO(network=ludus.MLP((8, 6), critic_hidden_sizes=(5,))), ARM),
    "ppo silu": (ludus.PPO(network=ludus.MLP((8, 8), "silu")), ARM),
    "ppo returns": (ludus.PPO(normalize_returns=True, normalize_rewards=True), ARM),
    "ppo groups": (ludus.PPO(normalize_observations=True), dataclasses.replace(ARM, observation_space=GROUPS)),
    "sac": (ludus.SAC(**SAC_OPTIONS), ARM),
    "sac normalised": (ludus.SAC(normalize_observations=True, **SAC_OPTIONS), ARM),
    "sac apart": (ludus.SAC(replay_size=256, network=ludus.MLP((16, 8), "relu", critic_hidden_sizes=(7,))), ARM),
    "sac image": (ludus.SAC(**SAC_OPTIONS), dataclasses.replace(ARM, observation_space=BYTES)),
    "bounds": (ludus.PPO(), BOUNDS),
    "saved before bounds counted": (ludus.PPO(), dataclasses.replace(BOUNDS, scaling="bytes")),
    "image, channels first": (
        ludus.PPO(),
        dataclasses.replace(ARM, observation_space=Box(0, 255, (2, 40, 36), "uint8")),
    ),
    "gru": (ludus.PPO(normalize_observations=True, network=ludus.GRU(memory_size=8, hidden_sizes=(16,))), ARM),
}
"""Algorithms and what they are for, beside the spaces of the zoo."""
