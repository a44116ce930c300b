"""Feature groups of the observation, and the encoders that read them: in PPO, SAC and behaviour cloning."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.algorithms.base import Algorithm
from ludus.algorithms.idle import idle_policy
from ludus.envs.scenarios.driving import observation
from ludus.envs.scenarios.driving.environment import Driving
from ludus.networks.encoders import LateFusion, LatentQuery, TokenMLP
from ludus.runtime.demonstrations import Demonstrations
from ludus.spaces import Dict, join_groups, split_groups
from ludus.training.evaluation import check_match
from ludus.types import LudusError, Spec, Tree

SMALL = {"objects": 4, "object_steps": 2, "targets": 3, "road_points": 6, "traffic_lights": 2}
ENV = Driving(**SMALL)
ENCODERS = {
    "mlp": TokenMLP((8,)),
    "lq": LatentQuery(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
    "wayformer": LateFusion(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
}


def seen(seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers in the place of an observation; every second token of those that can lack does."""
    generator = np.random.default_rng(seed)
    parts = {}
    for group in observation.groups(ENV.sizes):
        part = generator.uniform(-1, 1, group.shape).astype(np.float32)
        if group.valid is not None:
            part[:, group.valid] = np.arange(len(part)) % 2 == 0
        parts[group.name] = part
    return parts


@pytest.mark.requirement("S2.26")
def test_the_space_says_what_the_numbers_are():
    flat, named = ENV.observation_space, Driving(**SMALL, observation="structured").observation_space
    groups = {group.name: group for group in flat.groups}
    assert list(groups) == sorted(groups) == ["car", "lights", "objects", "past", "road", "targets"]
    assert groups["objects"].shape == (4, 13) and groups["objects"].valid == 12
    assert groups["lights"].valid == groups["road"].valid == 4
    assert groups["past"].ordered == groups["targets"].ordered == (0,)
    assert isinstance(named, Dict) and [name for name, _ in named.spaces] == list(groups)
    assert [box.groups for _, box in named.spaces] == [(group,) for group in flat.groups]
    parts = seen()
    for name, part in split_groups(flat, join_groups(flat, parts)).items():
        np.testing.assert_array_equal(part, parts[name])


def without_numbers_of_what_is_not_there(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with other numbers where a token is not there."""
    made = {name: part.copy() for name, part in parts.items()}
    for group in observation.groups(ENV.sizes):
        if group.valid is not None:
            gone = made[group.name][:, group.valid] == 0
            made[group.name][gone, : group.valid] = 7.0
    return made


def algorithm(name: str, encoder: str, folder: Path) -> Algorithm:
    network = ludus.MLP((8,), "relu", encoder=ENCODERS[encoder])
    if name == "ppo":
        return ludus.PPO(network=network)
    if name == "sac":
        return ludus.SAC(network=network)
    obs = np.stack([join_groups(ENV.observation_space, seen(i)) for i in range(8)])
    ends = np.arange(8) % 4 == 3
    action = np.zeros((8, 2), np.float32)
    shown = Demonstrations(
        ENV.observation_space, ENV.action_space, obs, action, np.zeros(8, np.float32), ends, ends & False, obs[ends]
    )
    ludus.write_demonstrations(shown, folder / "shown.safetensors")
    return ludus.BC(demonstrations=str(folder / "shown.safetensors"), network=network)


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
@pytest.mark.parametrize("name", ["ppo", "sac", "bc"])
def test_each_algorithm_reads_the_groups(name, tmp_path):
    """Cars and road points are sets, and those that are not there are nothing; past and targets are in order."""
    space, parts = ENV.observation_space, seen()
    cases = {
        "as it is": parts,
        "sets turned": {**parts, **{group: parts[group][::-1] for group in ("lights", "objects", "road")}},
        "nothing there": without_numbers_of_what_is_not_there(parts),
        "past turned": {**parts, "past": parts["past"][::-1]},
        "targets turned": {**parts, "targets": parts["targets"][::-1]},
    }
    obs = jnp.asarray(np.stack([join_groups(space, case) for case in cases.values()]))
    made = algorithm(name, "lq", tmp_path)
    spec = Spec(space, ENV.action_space, len(cases))
    state = made.init(jax.random.key(0), spec)

    def acts(obs: jax.Array) -> Tree:
        policy = made.policy(state)
        noise = made.noise(policy, jax.random.key(1), (1, len(cases)))
        noise = jax.tree.map(lambda x: x[0] if getattr(x, "ndim", 0) else x, noise)
        return made.act(policy, made.initial_memory(policy, len(cases)), obs, noise, "greedy")[1]

    if name == "bc":
        assert jax.tree.structure(made.policy(state)) == jax.tree.structure(made.policy(made.blank(spec)))
    first, turned, nothing, past, targets = np.asarray(jax.jit(acts)(obs))
    np.testing.assert_allclose(turned, first, atol=1e-6)
    np.testing.assert_allclose(nothing, first, atol=1e-6)
    assert np.abs(past - first).max() > 1e-5 and np.abs(targets - first).max() > 1e-5


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
@pytest.mark.parametrize("name", ENCODERS)
def test_flat_and_structured_observations_mean_the_same(name):
    config, parts = ENCODERS[name], seen()
    named = Driving(**SMALL, observation="structured").observation_space
    flat, other = (config(space, np.random.default_rng(5), "bounds") for space in (ENV.observation_space, named))
    one = flat(jnp.asarray(join_groups(ENV.observation_space, parts)))
    np.testing.assert_allclose(one, other(jax.tree.map(jnp.asarray, parts)), atol=1e-6)


@pytest.mark.requirement("S2.26")
def test_an_encoder_and_an_observation_that_do_not_match_are_named_in_one_line():
    with pytest.raises(LudusError, match=r"encoder=lq: the observation .* has no feature groups") as told:
        ludus.Trainer(ludus.PPO(network=ludus.MLP(encoder=LatentQuery())), ludus.make_env("Pendulum-v1", 4))
    assert "\n" not in str(told.value)


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
def test_a_policy_that_saw_other_groups_is_refused_in_one_line():
    """As many numbers, but others: five cars of nine numbers, or nine of five road points less."""
    env = ludus.make_env("driving", 2, objects=3, road_points=24)
    other = ludus.make_env("driving", 2, objects=8, road_points=15)
    assert str(env.observation_space) == str(other.observation_space)
    policy = idle_policy(Spec(other.observation_space, other.action_space, 2), other.id)
    with pytest.raises(LudusError, match=r"its observation space has objects \[3, 9\], the policy's objects \[8, 9\]$"):
        check_match(policy, env)
