"""SAC with a memory: which sequences are drawn, what is learnt from them against float64, and exact resume."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sac_memory_oracles as reference
from sac_cases import SPEC, random_rollout, small_sac, update

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.sequence_replay import Cut, draw, empty, sample_sequences, store
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import Memory
from ludus.networks.soft_actor_critic import Past, soft_networks
from ludus.spaces import Box
from ludus.training import config
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of
from ludus.types import LudusError, Rollout, Spec, Step, Transition

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
GRU = ludus.GRU(4, (5,))
SIZES = {"context_length": 4, "num_layers": 1, "num_heads": 2}
SMALL = ludus.Transformer(**SIZES, model_dim=8, feedforward_dim=8, hidden_sizes=(5,))
NETWORKS = {"gru": GRU, "transformer": SMALL}


def with_memory(name: str = "gru", **changes) -> ludus.SAC:
    sizes = {"segment_length": 4, "burn_in": 3, "batch_size": 16, "network": NETWORKS[name], "replay_size": 60}
    return small_sac(**(sizes | changes))


# Which sequences are drawn

ENVS, STEPS = 3, 5
PLACES = Spec(Box(0.0, 1e6, (2,)), Box(-1.0, 1.0, (1,)), ENVS)


class Diary:
    """Fills a replay and writes down what happened, `[t][env]`; what is observed says where and when."""

    def __init__(self, seed: int, capacity: int):
        self.rng = np.random.default_rng(seed)
        self.sac = with_memory(replay_size=capacity, unroll_length=STEPS)
        self.networks = soft_networks(self.sac.network, PLACES)
        self.replay = empty(self.sac, PLACES, self.networks)
        self.ended, self.terminated, self.valid = (np.zeros((0, ENVS), bool) for _ in range(3))
        self.put = jax.jit(partial(store, self.networks))

    def add(self, padding: bool = False) -> None:
        began = len(self.ended)
        time = np.arange(began, began + STEPS)[:, None] + np.zeros((1, ENVS), int)
        obs = np.stack([np.arange(ENVS) + 0 * time, time], axis=-1).astype(np.float32)
        after = obs + np.float32([0, 0.5])  # the true successor is not what the next step shows
        terminated, truncated = self.rng.random((2, STEPS, ENVS)) < 0.2
        valid = np.ones_like(terminated)
        if padding:
            lengths = self.rng.integers(1, STEPS + 1, ENVS)
            valid = np.arange(STEPS)[:, None] < lengths
            truncated |= np.arange(STEPS)[:, None] == lengths - 1
        goes_on = valid & ~(terminated | truncated)
        # Where an episode goes on, the successor is what is shown next.
        after = np.where(goes_on[..., None], obs + np.float32([0, 1]), after)
        action = obs[..., 1:] / 1e3
        steps = Transition(obs, action, time + 0.1 * np.arange(ENVS), terminated, truncated, after, (), None)
        self.replay = self.put(self.replay, steps._replace(valid=valid if padding else None), action)
        self.ended = np.concatenate([self.ended, ~goes_on])
        self.terminated = np.concatenate([self.terminated, terminated])
        self.valid = np.concatenate([self.valid, valid])


def drawn_from(diary: Diary, cut: Cut, seed: int = 0):
    made = jax.jit(partial(sample_sequences, cut=cut, see=lambda x: x))(diary.replay, jax.random.key(seed))
    return jax.tree.map(np.asarray, made)


@pytest.mark.requirement("S2.13")
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("rollouts", [3, 4, 11])
def test_a_sequence_is_what_happened_in_one_environment_step_by_step(rollouts, padding):
    diary, cut = Diary(rollouts, 60), Cut(400, 3, 4)
    for _ in range(rollouts):
        diary.add(padding)
    drawn = drawn_from(diary, cut)
    obs = np.concatenate([drawn.obs.before[0], drawn.obs.obs])
    ended = np.concatenate([drawn.obs.before[1], drawn.obs.ended])
    where, when = obs[..., 0].astype(int), obs[..., 1].astype(int)
    assert obs.shape == (7, 400, 2) and drawn.weight.shape == drawn.reward.shape == (4, 400)
    made = len(diary.ended)
    assert (where == where[0]).all() and (np.diff(when, axis=0) == 1).all(), "always the same, one step after the other"
    first = max(0, made - 60 // ENVS)
    assert set(when[0].tolist()) == set(range(first, made - 6)), "any that is whole"
    assert len(np.unique(np.stack([where[0], when[0]]), axis=1).T) == ENVS * (made - 6 - first)
    np.testing.assert_array_equal(ended[:-1], diary.ended[when, where][:-1])
    np.testing.assert_array_equal(drawn.weight, diary.valid[when, where][3:])
    is_real = drawn.weight > 0
    np.testing.assert_array_equal(drawn.terminated[is_real], diary.terminated[when, where][3:][is_real])
    np.testing.assert_allclose(drawn.reward[is_real], (when + 0.1 * where)[3:][is_real], rtol=1e-6)
    np.testing.assert_allclose(drawn.action[is_real][:, 0], when[3:][is_real] / 1e3, rtol=1e-6)
    # A true successor half a step later tells an episode's end from what is shown next.
    truncated = is_real & diary.ended[when, where][3:] & ~drawn.terminated
    later = drawn.next_obs.next_obs[..., 1] - when[3:]
    assert (later[is_real & ~diary.ended[when, where][3:]] == 1.0).all() and (later[truncated] == 0.5).all()
    assert truncated.any() and is_real.all() != padding


@pytest.mark.parametrize("made", [0, 1])
def test_while_there_are_too_few_steps_what_is_missing_weighs_nothing(made):
    diary = Diary(0, 60)
    for _ in range(made):
        diary.add()
    drawn = drawn_from(diary, Cut(200, 2, 6))
    obs = np.concatenate([drawn.obs.before[0], drawn.obs.obs])
    exists = (obs[0, :, 1] + np.arange(8)[:, None] < STEPS * made) & (made > 0)
    np.testing.assert_array_equal(drawn.weight > 0, exists[2:])
    assert drawn.weight.any() == (made > 0)


# What networks make of a sequence


def shown(network: str, seed: int = 0):
    """A past of 3 + 6 steps, modules for it, and its parts."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, 9, 4, 3)).astype(np.float32)
    ended = rng.random((9, 4)) < 0.25
    networks = soft_networks(NETWORKS[network], SPEC)
    modules = [net.merge(net.initialize(jax.random.key(seed))) for net in (networks.actor, networks.critic)]
    return Past((obs[:3], ended[:3]), obs[3:], None, ended[3:]), obs, next_obs, ended, modules


@pytest.mark.parametrize("network", NETWORKS)
def test_over_a_sequence_a_network_sees_what_it_sees_step_by_step(network):
    past, obs, next_obs, ended, (actor, critic) = shown(network)
    action = np.random.default_rng(1).uniform(-1, 1, (6, 4, 2)).astype(np.float32)
    now, after = actor(past), actor(past._replace(next_obs=next_obs[3:]))
    values = critic(past, action), critic(past._replace(next_obs=next_obs[3:]), action)
    memories = [module.memory.initial(4) for module in (actor, critic)]
    for t in range(9):
        left, policy = actor.step(memories[0], obs[t])
        its, value = critic.step(memories[1], obs[t], action[max(t - 3, 0)])
        if t >= 3:
            np.testing.assert_allclose(now.mean[t - 3], policy.mean, atol=1e-6)
            np.testing.assert_allclose(after.mean[t - 3], actor.step(left, next_obs[t])[1].mean, atol=1e-6)
            np.testing.assert_allclose(values[0][t - 3], value, atol=1e-5)
            np.testing.assert_allclose(values[1][t - 3], critic.step(its, next_obs[t], action[t - 3])[1], atol=1e-5)
        memories = [
            jax.tree.map(lambda a, b, t=t: jnp.where(ended[t].reshape(-1, *[1] * (b.ndim - 1)), a, b), start, memory)
            for start, memory in zip((m.memory.initial(4) for m in (actor, critic)), (left, its), strict=True)
        ]


@pytest.mark.parametrize("network", NETWORKS)
def test_no_slope_reaches_the_burn_in_nor_another_episode(network):
    past, _, _, _, (actor, _) = shown(network)
    ended = np.zeros((9, 4), bool)
    ended[5] = True
    past = past._replace(before=(past.before[0], ended[:3]), ended=ended[3:])

    def mean(before, obs, at):
        return actor(past._replace(before=(before, ended[:3]), obs=obs)).mean[at].sum()

    for at, first in ((2, 0), (4, 3)):
        burnt, learnt = jax.grad(mean, argnums=(0, 1))(past.before[0], past.obs, at)
        assert not np.asarray(burnt).any()
        assert np.flatnonzero(np.abs(learnt).sum((1, 2))).tolist() == list(range(first, at + 1))
    moved = actor(past._replace(before=(past.before[0] + 1.0, ended[:3]))).mean - actor(past).mean
    assert np.abs(moved[:3]).max() > 1e-6 and not np.abs(moved[3:]).any(), "but what it leaves is remembered"


# Learning against float64


@pytest.mark.requirement("S2.15")
@pytest.mark.parametrize(("burn_in", "seed"), [(0, 0), (3, 1)])
def test_a_gradient_step_over_sequences_equals_float64_numpy(burn_in, seed):
    rng = np.random.default_rng(seed)
    sac = with_memory(burn_in=burn_in, updates_per_step=1 / 12, learning_rate=0.0, tau=0.3, replay_size=120)
    state = sac.init(jax.random.key(seed), SPEC)
    start = state.learner.parameters, state.learner.target_critics
    start = jax.tree.map(lambda x: x + rng.normal(scale=0.3, size=x.shape).astype(np.float32), start)
    state = dataclasses.replace(state, learner=state.learner._replace(parameters=start[0], target_critics=start[1]))
    replay = state.replay
    for _ in range(5):
        steps = random_rollout(rng).steps
        replay = store(state.networks, replay, steps, steps.extras["unit_action"])
    state, rollout = dataclasses.replace(state, replay=replay), random_rollout(rng)
    _, metrics = update(as_arrays(sac), state, rollout, KEY)
    assert (int(metrics["updates"]), int(metrics["fault"])) == (1, 0)

    whole = store(state.networks, replay, rollout.steps, rollout.steps.extras["unit_action"])
    sample_key, noise_key = jax.random.split(jax.random.fold_in(KEY, 0))
    drawn = draw(sac, state.networks, whole, sample_key, lambda x: x)
    noise = jax.random.normal(noise_key, (2, *drawn.action.shape))
    oracle = reference.SACMemoryReference(sac, state, reference.Sequences(drawn, drawn.next_obs.next_obs, 4), noise)
    losses = [oracle.critic_loss(i, oracle.critics[i]) for i in (0, 1)]
    policy_loss, log_prob = oracle.policy_loss(oracle.actor, oracle.critics)
    assert metrics["critic_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(policy_loss, rel=1e-5, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(-log_prob, rel=1e-5, abs=1e-5)
    gradient = metrics["gradient"]
    parts = [("actor", oracle.actor, gradient.actor, lambda p: oracle.policy_loss(p, oracle.critics)[0])]
    parts += [
        ("critics", oracle.critics[i], [leaf[i] for leaf in gradient.critics], partial(oracle.critic_loss, i))
        for i in (0, 1)
    ]
    for part, p, got, loss in parts:
        for _ in range(4):
            direction = {name: rng.normal(size=x.shape) for name, x in p.items()}
            ours = sum(
                float(np.sum(np.asarray(g, np.float64) * direction[name]))
                for name, g in zip(oracle.names[part], got, strict=True)
            )
            assert ours == pytest.approx(reference.slope(loss, p, direction), rel=2e-4, abs=1e-5), part


# Acting, saving, resuming


@pytest.mark.parametrize("network", NETWORKS)
def test_a_saved_policy_and_its_critic_remember_as_they_did(tmp_path, network):
    env = ludus.make_env("PendulumNoVelocity-v1", num_envs=2)
    settings = ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=2, record_behaviour=False)
    trainer = ludus.Trainer(with_memory(network, learning_starts=8), env, settings, run_dir=tmp_path / "run")
    trainer.train(total_steps=32)
    loaded, obs = (
        ludus.load_policy(tmp_path / "run"),
        np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32),
    )
    memories = [policy.initial_memory(3) for policy in (loaded, trainer.policy)]
    seen = []
    for row in obs:
        actions = []
        for i, policy in enumerate((loaded, trainer.policy)):
            action, memories[i] = policy(row, memories[i])
            actions.append(action)
        np.testing.assert_array_equal(*actions)
        seen.append(actions[0])
    assert np.abs(loaded(obs[3]) - seen[3]).max() > 1e-7, "without its memory it acts in another way"
    critic = trainer.critic
    memory = critic.initial_memory(3)
    values = []
    for row, action in zip(obs, seen, strict=True):
        value, memory = critic(row, action, memory)
        values.append(value)
    assert np.shape(values) == (4, 3) and np.abs(critic(obs[3], seen[3]) - values[3]).max() > 1e-7


@pytest.mark.requirement("S4.13")
@pytest.mark.parametrize(("network", "env"), [("gru", "PendulumNoVelocity-v1"), ("transformer", "gym:Pendulum-v1")])
def test_a_run_of_sac_with_a_memory_resumes_bit_by_bit_in_the_midst_of_an_episode(tmp_path, network, env):
    sac = with_memory(network, learning_starts=16, normalize_observations=True)
    settings = ludus.Settings(
        verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False,
        checkpoint=ludus.CheckpointOptions(every_iterations=1),
    )  # fmt: skip

    def train(folder, iterations):
        made = ludus.make_env(env, num_envs=2, **({"num_workers": 0} if env.startswith("gym:") else {}))
        ludus.Trainer(sac, made, settings, run_dir=folder).train(total_steps=8 * iterations)

    train(tmp_path / "whole", 9)
    train(tmp_path / "parts", 4)
    ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=8 * 9).train()
    state = state_of(tmp_path / "whole")
    assert differences(state, state_of(tmp_path / "parts")) == []
    assert any(name.startswith("carry/memory") and value.any() for name, value in state.items())


class Recall(Memory):
    """The memory probe with real actions: the third must be 0.5 or -0.5, by the sign that was shown at the first."""

    action_space = Box(-1.0, 1.0, (1,))

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array):
        last, wanted = state[1] == 2, 0.5 * jnp.sign(state[0])
        reward = jnp.where(last, 1.0 - 4.0 * (action[0] - wanted) ** 2, 0.0)
        return state + jnp.array([0.0, 1.0]), Step(jnp.zeros(1), reward, last)


@pytest.mark.requirement("S0.9", "S1.34")
@pytest.mark.parametrize(("network", "least", "most"), [
    (ludus.GRU(16, (32,), "relu"), 0.9, 1.0),
    (ludus.Transformer(**SIZES, model_dim=16, feedforward_dim=32, hidden_sizes=(32,), activation="relu"), 0.9, 1.0),
    (ludus.MLP((32, 32), "relu"), -1.0, 0.1),
], ids=["gru", "transformer", "memoryless"])  # fmt: skip
def test_what_was_shown_three_steps_ago_is_learnt_with_a_memory_alone(network, least, most):
    sac = ludus.SAC(
        learning_rate=3e-3, gamma=0.9, tau=0.02, alpha=0.01, automatic_alpha=False, batch_size=96, segment_length=12,
        burn_in=4, replay_size=20_000, unroll_length=8, learning_starts=1000, updates_per_step=0.2, network=network,
    )  # fmt: skip
    settings = ludus.Settings(verbose=False, eval_frequency=0, record_behaviour=False)
    result = ludus.Trainer(sac, JaxEnv(Recall(), 16, "recall"), settings).train(total_steps=16_000)
    assert least <= result.evaluation.returns.mean() <= most, result.evaluation.returns.mean()


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment_length": 5}, "^algorithm.segment_length=5: must divide algorithm.batch_size=16"),
        ({"burn_in": -1}, "^algorithm.burn_in=-1: must be at least 0"),
        ({"network": dataclasses.replace(GRU, shared=True)}, "^algorithm.network.shared=true: must be false"),
        (
            {"network": dataclasses.replace(SMALL, context_length=8)},
            "^algorithm.network.context_length=8: must be at most",
        ),
        ({"network": ludus.GRU(4, ())}, r"^algorithm.network.hidden_sizes=\[\]: SAC's critics need a layer"),
        ({"replay_size": 20}, "^algorithm.replay_size=20: must hold one sequence of each environment"),
    ],
)
def test_sequences_that_cannot_be_are_refused_by_name(changes, message):
    with pytest.raises(LudusError, match=message) as caught:
        with_memory(**changes).validate(SPEC)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("network", ["gru", "transformer"])
def test_a_memory_is_chosen_by_configuration(network):
    words = ["env=PendulumNoVelocity-v1", "algorithm=sac", f"algorithm/network={network}"]
    parts = config.build(config.compose(words))
    parts.algorithm.validate(Spec(parts.env.observation_space, parts.env.action_space, parts.env.num_envs))
    assert type(parts.algorithm.network).__name__.lower() == network
    parts.env.close()


def test_a_rollout_needs_no_memory_of_the_replay_while_it_is_collected():
    """What is stored is what happened, whatever the policy remembered meanwhile."""
    sac = with_memory()
    state, rollout = sac.init(KEY, SPEC), random_rollout(np.random.default_rng(0))
    memories = (np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32))
    ends = [update(as_arrays(sac), state, Rollout(rollout.steps, memory), KEY)[0] for memory in memories]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)
