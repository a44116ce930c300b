"""PPO on tasks with known answers: masks, starts, images, dicts and many choices at once; and what it refuses."""

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from cases import told
from oracles import flat

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.minibatch import blank_padding
from ludus.algorithms.observations import without_masks
from ludus.algorithms.policy import save_policy
from ludus.envs.batch import JaxEnv
from ludus.rollout import compiled
from ludus.runtime.rng import stream
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ludus.types import RolloutKeys, Spec, Transition

pytestmark = pytest.mark.slow

SETTINGS = {
    "batch_size": 256,
    "minibatch_size": 64,
    "epochs_per_update": 4,
    "learning_rate": 1e-2,
    "entropy_coef": 0.0,
    "network": ludus.MLP(hidden_sizes=(32,)),
}


def trained(env: ludus.Environment, steps: int, **settings) -> ludus.Trainer:
    trainer = ludus.Trainer(
        ludus.PPO(**(SETTINGS | settings)),
        ludus.make_env(env, 16),
        ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False),
    )
    trainer.train(total_steps=steps)
    return trainer


class OneStep(ludus.Environment):
    """One step, whose observation is the state."""

    max_episode_steps = 1

    def reset(self, key):
        obs = self.draw(key)
        return obs, obs

    def step(self, state, action, key):
        return state, ludus.Step(state, self.pay(state, action), jnp.asarray(True), jnp.asarray(False))


# Masks


@dataclass(frozen=True)
class Tempting(OneStep):
    """Of four actions two are allowed, by the sign seen; the better of them earns 1. Forbidden ones earn 10."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(4, start=2)

    def draw(self, key):
        return jax.random.rademacher(key, (1,), jnp.float32)

    def action_mask(self, state):
        return jnp.where(state[0] > 0, jnp.array([True, False, True, False]), jnp.array([False, True, False, True]))

    def pay(self, state, action):
        best = jnp.where(state[0] > 0, 4, 3)
        return jnp.where(self.action_mask(state)[action - 2], jnp.where(action == best, 1.0, 0.0), 10.0)


@pytest.fixture(scope="module")
def masked() -> ludus.Trainer:
    return trained(Tempting(), 10_000)


def test_a_forbidden_action_is_never_chosen_however_tempting(masked):
    assert (masked.evaluate(100).returns == 1.0).all()
    learner, keys = masked.state.learner, RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    fresh = masked.algorithm.init(stream(0, "init"), masked.loop.spec)
    for state in (fresh, learner):
        policy = masked.algorithm.policy(state)
        start = compiled.begin(masked.loop.arrays, masked.env, policy, keys.begin)
        steps = compiled.collect(masked.loop.arrays, masked.env, policy, start, keys, 256, False)[1].steps
        assert np.asarray(steps.reward).max() <= 1.0


def test_a_policy_takes_a_mask_by_hand_and_obeys_it(masked):
    everything = np.ones(4, bool)
    for allowed in range(4):
        mask = np.arange(4) == allowed
        assert masked.policy(ludus.Masked(np.ones(1), mask)) == 2 + allowed
        batch = masked.policy(ludus.Masked(np.ones((3, 1)), np.stack([mask, everything, mask])))
        assert batch[0] == batch[2] == 2 + allowed
    assert 2 <= masked.policy(np.ones(1)) <= 5, "without a mask, everything is allowed"


@pytest.mark.parametrize("case", ["masked choice", "masked multi-discrete"])
@pytest.mark.parametrize("threshold", [0, 1], ids=["steps", "episodes"])
def test_learning_sees_the_masks_that_acting_saw(case, threshold):
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1, network=ludus.MLP(hidden_sizes=(8,)))
    env = JaxEnv(zoo.make(case, "jax"), 4, case)
    state = ppo.init(stream(0, "init"), Spec(env.observation_space, env.action_space, 4))
    keys = RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    policy = ppo.policy(state)
    start = compiled.begin(as_arrays(ppo), env, policy, keys.begin)
    rollout = jax.jit(compiled.collect, static_argnums=(1, 5, 6))(
        as_arrays(ppo), env, policy, start, keys, 16, threshold
    )[1]
    after, metrics = jax.jit(lambda s, r: told(ppo, s, r, stream(2, "update")))(state, rollout)
    assert metrics["fault"] == 0
    assert abs(float(metrics["approx_kl"])) < 1e-6 and metrics["clip_fraction"] == 0, "every ratio is 1"
    mask = np.asarray(rollout.steps.obs.action_mask)
    valid = np.ones(mask.shape[:2], bool) if rollout.steps.valid is None else np.asarray(rollout.steps.valid)
    sizes = env.env.sizes
    components = np.split(mask[valid].astype(float), np.cumsum(sizes)[:-1], axis=-1)
    uniform = sum(np.log(part.sum(axis=-1)) for part in components).mean()
    assert float(metrics["entropy"]) == pytest.approx(uniform, abs=0.01), "the first policy is uniform over the allowed"
    assert np.isfinite(flat(after.parameters)).all()


def test_a_mask_that_does_not_fit_is_refused(masked):
    with pytest.raises(ludus.LudusError, match=r"a mask of shape \(3,\) does not fit Discrete\(n=4, start=2\)"):
        masked.policy(ludus.Masked(np.ones(1), np.ones(3)))


def test_padding_allows_everything_so_that_nothing_in_it_is_infinite():
    valid = jnp.array([[True, False]])
    obs = ludus.Masked(jnp.zeros((1, 2, 3)), jnp.array([[[True, False], [True, False]]]))
    numbers, flags = jnp.zeros((1, 2)), jnp.zeros((1, 2), bool)
    steps = Transition(obs, flags, numbers, flags, flags, obs, {}, valid)
    plain, mask = without_masks(blank_padding(steps))
    np.testing.assert_array_equal(mask, [[[True, False], [True, True]]])
    assert plain.obs.shape == plain.next_obs.shape == (1, 2, 3)


@dataclass(frozen=True)
class Stuck(Tempting):
    """Forbids everything."""

    def action_mask(self, state):
        return jnp.zeros(4, bool)


def test_a_jax_environment_that_forbids_everything_stops_the_training():
    with pytest.raises(ludus.LudusError, match="action_mask of environment 0 forbids every action in step 1"):
        trained(Stuck(), 256)


# Spaces with known answers


@dataclass(frozen=True)
class Shifted(OneStep):
    """Says one of 7, 8, 9 and wants it answered by -3, -2, -1; anything outside of those is paid with NaN."""

    observation_space = Discrete(3, start=7)
    action_space = Discrete(3, start=-3)

    def draw(self, key):
        return jax.random.randint(key, (), 7, 10)

    def pay(self, state, action):
        inside = (action >= -3) & (action <= -1)
        return jnp.where(inside, jnp.where(action + 10 == state, 1.0, 0.0), jnp.nan)


@dataclass(frozen=True)
class Pair(OneStep):
    """A dict of a number and a sign, answered by both: each right answer earns 1."""

    observation_space = Dict({"number": Discrete(3), "sign": Box(-1.0, 1.0, (1,))})
    action_space = MultiDiscrete([3, 2])

    def draw(self, key):
        sign = jax.random.rademacher(jax.random.fold_in(key, 1), (1,), jnp.float32)
        return {"number": jax.random.randint(key, (), 0, 3), "sign": sign}

    def pay(self, state, action):
        number, sign = action[0] == state["number"], action[1] == (state["sign"][0] > 0)
        return number.astype(jnp.float32) + sign.astype(jnp.float32)


@dataclass(frozen=True)
class Mixed(Pair):
    """The same, answered by a dict of a switch and a real number, which is right within a quarter."""

    action_space = Dict({"dial": Box(0.0, 2.0, (1,)), "switch": MultiBinary(1)})

    def pay(self, state, action):
        gap = action["dial"][0] - state["number"]
        return 1.0 - gap**2 + (action["switch"][0] == (state["sign"][0] > 0))


@dataclass(frozen=True)
class Picture(OneStep):
    """A bright half, left or right, says which action earns 1."""

    observation_space = Box(0.0, 255.0, (36, 36, 1), "uint8")
    action_space = Discrete(2)

    def draw(self, key):
        noise, side = jax.random.bits(key, (36, 36, 1), jnp.uint8) // 4, jax.random.bernoulli(key)
        bright = (jnp.arange(36) >= 18)[None, :, None] == side
        return noise + jnp.where(bright, 150, 0).astype(jnp.uint8)

    def pay(self, state, action):
        right = state[:, 18:].sum(dtype=jnp.int32) > state[:, :18].sum(dtype=jnp.int32)
        return jnp.where(action == right, 1.0, 0.0)


def test_starts_are_added_to_actions_and_taken_off_observations():
    trainer = trained(Shifted(), 10_000)
    assert (trainer.evaluate(50).returns == 1.0).all()
    np.testing.assert_array_equal(trainer.policy(np.array([7, 8, 9])), [-3, -2, -1])
    assert trainer.policy(8) == -2


@pytest.mark.parametrize("network", [ludus.MLP(hidden_sizes=(32,)), ludus.GRU(memory_size=16, hidden_sizes=(32,))])
def test_every_component_of_a_multi_discrete_action_learns_its_own_part(network):
    trainer = trained(Pair(), 20_000, network=network, normalize_returns=False)
    assert trainer.evaluate(100).returns.mean() == 2.0


def test_choices_and_real_numbers_are_learnt_side_by_side():
    trainer = trained(Mixed(), 40_000, learning_rate=3e-3)
    assert trainer.evaluate(100).returns.mean() > 1.95
    action = trainer.policy({"number": 1, "sign": np.ones(1)})
    assert action.keys() == {"dial", "switch"} and action["switch"] == 1
    assert action["dial"] == pytest.approx(1.0, abs=0.25)


def test_a_picture_is_seen_through_convolutions():
    trainer = trained(Picture(), 1024, batch_size=128, epochs_per_update=2, learning_rate=1e-3)
    assert trainer.evaluate(50).returns.mean() == 1.0
    assert any("convolutions" in name for name in trainer.state.learner.network.names)


# Normalisation and saving


def test_only_real_numbers_are_normalised_and_each_leaf_by_itself():
    env = ludus.make_env(zoo.make("dict", "jax"), 4)
    ppo = ludus.PPO(batch_size=32, minibatch_size=32, normalize_observations=True)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))
    trainer.train(total_steps=64)
    statistics = trainer.state.learner.observations
    assert [name for name, entry in statistics.items() if entry is not None] == ["position"]
    assert statistics["position"].mean.shape == (3,) and statistics["position"].count == 64


@pytest.mark.parametrize("case", ["dict", "nested", "image"])
def test_a_policy_of_many_parts_is_saved_and_loaded_whole(case, tmp_path):
    env = ludus.make_env(zoo.make(case, "gymnasium"), 4)
    ppo = ludus.PPO(batch_size=32, minibatch_size=32, normalize_observations=True)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))
    trainer.train(total_steps=64)
    save_policy(trainer.policy, tmp_path / "policy.safetensors")
    loaded = ludus.load_policy(tmp_path / "policy.safetensors")
    assert loaded.spec == trainer.loop.spec
    obs = env.reset([1, 2, 3, 4])
    jax.tree.map(np.testing.assert_array_equal, loaded(obs), trainer.policy(obs))
    one = jax.tree.map(lambda x: x[0], obs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-4), loaded(one), loaded(obs))
    assert len(ludus.evaluate(loaded, env, episodes=4).returns) == 4


def test_a_policy_refuses_an_observation_unlike_its_space():
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=32, minibatch_size=32), ludus.make_env(Pair(), 4), ludus.Settings(verbose=False)
    )
    with pytest.raises(ludus.LudusError, match=r"keys \['number', 'sign'\] was expected, got keys \['number'\]"):
        trainer.policy({"number": 1})


# What cannot be done


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (
            Box(0.0, 1.0, (2,)),
            Box(0.0, 9.0, (2,), "int32"),
            "PPO: action space Box.*a Box of actions must be of floats",
        ),
        (Box(0.0, 1.0, (2,)), Dict({"a": Box(0.0, 9.0, (1,), "uint8")}), "of 'a' is not supported; a Box of actions"),
        (Box(0.0, 1.0, (0,)), Discrete(2), "PPO: observation space Box.* is empty"),
        (Dict({}), Discrete(2), r"PPO: observation space Dict.* is empty"),
        (Dict({"a": Tuple([Box(0.0, 1.0, (3, 0))])}), Discrete(2), "of 'a/0' is empty"),
        (Box(0.0, 1.0, (2,)), Tuple([]), "PPO: action space Tuple.* is empty"),
        (Box(0.0, 1.0, (2,)), Discrete(0), "PPO: action space Discrete.* is empty"),
        ("pixels", Discrete(2), "PPO: observation space pixels is not supported; Box, Discrete, MultiDiscrete"),
        (Box(0.0, 1.0, (2,)), Dict({"a": None}), "PPO: action space None of 'a' is not supported"),
    ],
)
def test_what_cannot_be_learnt_is_refused_by_name_before_anything_compiles(observations, actions, message):
    with pytest.raises(ludus.LudusError, match=message) as caught:
        ludus.PPO().validate(Spec(observations, actions, 4))
    assert "\n" not in str(caught.value)


def test_integer_actions_of_a_gymnasium_box_are_refused_by_the_trainer():
    case = zoo.Case(zoo.POSITION, gymnasium.spaces.Box(0, 9, (2,), np.int64))
    with pytest.raises(ludus.LudusError, match="a Box of actions must be of floats"):
        ludus.Trainer(ludus.PPO(), ludus.make_env(lambda: zoo.RandomGym(case), 2), ludus.Settings(verbose=False))


# Scales


@dataclass(frozen=True)
class Parity(OneStep):
    """Of eight bits the first two decide: their XOR is the action that pays."""

    observation_space, action_space = Box(0.0, 1.0, (8,), "uint8"), Discrete(2)

    def draw(self, key):
        return jax.random.bernoulli(key, 0.5, (8,)).astype(jnp.uint8)

    def pay(self, state, action):
        return (action == (state[0] ^ state[1])).astype(jnp.float32)


def test_bytes_that_are_0_or_1_are_seen_as_well_as_floats():
    trainer = trained(Parity(), 20_480)
    assert ludus.evaluate(trainer.policy, trainer.env, episodes=200).returns.mean() > 0.95


@dataclass(frozen=True)
class Aim(OneStep):
    """Pays for an action near (60, 1), where the first entry is bounded by 100 and the second by nothing."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box((-100.0, -np.inf), (100.0, np.inf), (2,))

    def draw(self, key):
        return jnp.zeros(1)

    def pay(self, state, action):
        return -jnp.square((action[0] - 60) / 100) - jnp.square(action[1] - 1)


def test_bounded_entries_beside_unbounded_ones_reach_their_targets():
    trainer = trained(Aim(), 20_480)
    first, second = trainer.policy(np.zeros(1, np.float32))
    assert abs(first - 60) < 6 and abs(second - 1) < 0.1
