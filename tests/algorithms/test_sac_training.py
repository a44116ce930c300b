"""SAC under the trainer: counts, warm-up, chunks, seeds, evaluation, what is saved, and both collectors."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dressed import DressedEnv
from replay_ledger import live
from sac_cases import Drift, small_sac, update

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.minibatch import blank_padding
from ludus.envs.base import Environment
from ludus.envs.batch import JaxEnv
from ludus.rollout import compiled, host
from ludus.runs.journal import read_journal
from ludus.runs.metrics import is_timing
from ludus.runtime.compilation import compiler_options, jit
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete
from ludus.training import trainer as trainer_module
from ludus.types import RolloutKeys, Spec, Step

pytestmark = pytest.mark.slow

BOTH = ["compiled", "host"]


def environment(how: str, num_envs: int = 3, env: Environment | None = None):
    env = JaxEnv(env or Drift(), num_envs, "drift")
    return DressedEnv(env) if how == "host" else env


def make_trainer(how: str = "compiled", sac: ludus.SAC | None = None, num_envs: int = 3, **options) -> ludus.Trainer:
    env = options.pop("env", None) or environment(how, num_envs)
    run_dir = options.pop("run_dir", None)
    short = {"eval_frequency": 0, "eval_episodes": 2, "eval_episodes_final": 2, "verbose": False}
    settings = ludus.Settings(**short | options)
    return ludus.Trainer(sac or small_sac(), env, settings, run_dir=run_dir)


def contents(trainer: ludus.Trainer) -> list[np.ndarray]:
    """Everything in the state that can ever matter again."""
    state = trainer.state
    learner = [state.learner.learner, state.learner.observations, state.learner.warmup_left, state.learner.owed_updates]
    rest = jax.tree.leaves((learner, state.carry, state.iteration, state.counters))
    return [np.asarray(leaf) for leaf in rest] + live(state.learner.replay)


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def without_clock(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not is_timing(k)} for row in rows]


# Counting


@pytest.mark.requirement("S2.11")
@pytest.mark.requirement("S2.13")
@pytest.mark.requirement("S2.14")
@pytest.mark.parametrize(("how", "num_envs", "starts"), [("compiled", 3, 10), ("compiled", 5, 0), ("host", 3, 10)])
def test_gradient_steps_are_the_floor_of_what_environment_steps_have_earned(how, num_envs, starts, tmp_path):
    ratios = ["1", "1/2", "3/2", "1/8", "1/3", "3/10", "0"] if how == "compiled" else ["1/2"]
    for i, ratio in enumerate(map(Fraction, ratios)):
        sac = small_sac(learning_starts=starts, updates_per_step=float(ratio), replay_size=40)
        trainer = make_trainer(how, sac, num_envs, run_dir=tmp_path / str(i))
        result = trainer.train(total_steps=90)
        rows = [row for row in read_journal(tmp_path / str(i)) if row["kind"] == "train"]
        assert [row["steps"] for row in rows] == list(range(4 * num_envs, result.steps + 1, 4 * num_envs))
        before = 0
        for row in rows:
            assert row["updates"] == int(ratio * max(row["steps"] - starts, 0)), (ratio, row)
            assert ("critic_loss" in row) == (row["updates"] > before)
            before = row["updates"]
        assert result.updates == rows[-1]["updates"]
        assert rows[-1]["replay_size"] == 40


def decided(learner):
    """A learner whose policy has made up its mind: every action is the upper bound, whatever it sees."""
    index, parameters = learner.networks.actor.names.index("mean/bias"), learner.learner.parameters
    actor = list(parameters.actor)
    actor[index] = jnp.full_like(actor[index], 30.0)
    parameters = parameters._replace(actor=tuple(actor))
    return replace(learner, learner=learner.learner._replace(parameters=parameters))


class Witness(DressedEnv):
    """Remembers the actions it was given."""

    def reset(self, seeds):
        self.actions = []
        return super().reset(seeds)

    def step(self, action):
        self.actions.append(np.array(action))
        return super().step(action)


@pytest.mark.requirement("S2.11")
@pytest.mark.parametrize("starts", [0, 10, 24])
def test_exactly_the_first_actions_are_random_and_all_others_the_policys(starts):
    env = Witness(JaxEnv(Drift(), 3, "drift"))
    trainer = make_trainer(sac=small_sac(learning_starts=starts, learning_rate=0.0), env=env)
    trainer.learner = decided(trainer.learner)
    trainer.train(total_steps=48)
    actions = np.concatenate(env.actions)  # [T, B] in the order of steps
    is_random = (actions < 1.999).any(axis=1)
    assert len(actions) == 48 and is_random[:starts].all() and not is_random[starts:].any()
    assert (actions >= np.float32(-0.3)).all() and (actions <= 2.0).all()


@pytest.mark.requirement("S2.10")
@pytest.mark.parametrize("how", BOTH)
def test_whole_episodes_fill_the_replay_with_valid_rows_alone(how):
    sac = small_sac(unroll_length=8, replay_size=200)
    trainer = make_trainer(how, sac, collect="episodes")
    result = trainer.train(max_episodes=18)
    assert (result.episodes, result.iterations) == (18, 6)
    assert int(trainer.state.learner.replay.ends.size) == result.steps < 6 * 24
    assert result.updates == int(0.25 * result.steps)


# The same run again


@pytest.mark.requirement("S4.10")
@pytest.mark.parametrize("how", BOTH)
def test_any_chunking_gives_sac_the_same_bits(how, tmp_path, monkeypatch):
    sac = small_sac(normalize_observations=True, learning_starts=10)
    long, short = (make_trainer(how, sac, run_dir=tmp_path / name) for name in ("long", "short"))
    long.train(total_steps=240)
    monkeypatch.setattr(trainer_module, "CHUNK_SECONDS", 0.0)  # every chunk is one iteration
    short.train(total_steps=120)
    short.train(total_steps=240)
    assert_equal(contents(long), contents(short))
    rows = [[r for r in without_clock(read_journal(tmp_path / n)) if r["kind"] == "train"] for n in ("long", "short")]
    drop = [{k: v for k, v in row.items() if k != "seq"} for row in rows[1]]
    assert [{k: v for k, v in row.items() if k != "seq"} for row in rows[0]] == drop


@pytest.mark.requirement("S1.36")
@pytest.mark.parametrize("how", BOTH)
def test_the_same_seed_gives_sac_the_same_bits_and_another_seed_others(how):
    one, same, other = (make_trainer(how, seed=seed) for seed in (3, 3, 4))
    for trainer in (one, same, other):
        trainer.train(total_steps=120)
    assert_equal(contents(one), contents(same))
    actors = [trainer.state.learner.learner.parameters.actor for trainer in (one, other)]
    assert all((a != b).any() for a, b in zip(*actors, strict=True))


@pytest.mark.requirement("S2.17")
@pytest.mark.parametrize("how", BOTH)
def test_evaluation_is_greedy_repeatable_and_never_touches_sac(how):
    sac = small_sac(normalize_observations=True)
    never, often = make_trainer(how, sac), make_trainer(how, sac, eval_frequency=2, eval_episodes=2)
    never.train(total_steps=120)
    often.train(total_steps=120)
    before = contents(often)
    one, two = often.evaluate(5), often.evaluate(5)
    np.testing.assert_array_equal(one.returns, two.returns)
    assert_equal(before, contents(often))
    if how == "compiled":  # the host environment is one object: an evaluation would be seen if it were not a copy
        assert_equal(contents(never), contents(often))


# Both collectors


@pytest.mark.requirement("S4.10")
@pytest.mark.parametrize("threshold", [0, 1], ids=["steps", "episodes"])
def test_both_collectors_give_sac_the_same_rollout_and_the_same_update(threshold):
    sac = small_sac(unroll_length=8, learning_starts=5, normalize_observations=True)
    env, algorithm = JaxEnv(Drift(), 3, "drift"), as_arrays(sac)
    state = sac.init(stream(0, "init"), Spec(env.observation_space, env.action_space, 3))
    policy, keys = sac.policy(state), RolloutKeys(*(stream(1, name) for name in RolloutKeys._fields))
    begun = compiled.start(algorithm, env, policy, keys.begin)
    dressed = DressedEnv(env)
    dressed.use(begun.env, keys, 8)
    dressed.reset = lambda seeds: np.asarray(begun.env.obs)  # host and compiled begin from different random numbers
    start = host.begin(algorithm, dressed, policy, keys.begin)
    program = jit(compiled.collect, compiler_options(0), static=("env", "num_steps", "threshold"))
    _, rollout, _ = program(algorithm, env, policy, begun, keys, 8, threshold)
    _, host_rollout, _ = host.collect(algorithm, dressed, policy, start, keys, 8, threshold)
    assert (np.asarray(rollout.steps.terminated) | np.asarray(rollout.steps.truncated)).any()
    ends = [update(algorithm, state, x, stream(2, "update")) for x in (rollout, host_rollout)]
    assert int(ends[0][1]["updates"]) > 0 and int(ends[0][1]["fault"]) == 0
    shown = [blank_padding(x.steps) for x in (rollout, host_rollout)]  # the host does not come to its padding
    for one, other in zip(*map(jax.tree.leaves, zip(shown, ends, strict=True)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# Faults


class Breaking(DressedEnv):
    """Shows a NaN after so many steps."""

    breaks_at = 9

    def reset(self, seeds):
        self.count = 0
        return super().reset(seeds)

    def step(self, action):
        step = super().step(action)
        self.count += 1
        return step._replace(next_obs=step.next_obs * np.nan) if self.count == self.breaks_at else step


def test_a_run_of_sac_that_meets_a_nan_stops_with_the_state_before_it():
    broken = make_trainer(env=Breaking(JaxEnv(Drift(), 3, "drift")))
    with pytest.raises(ludus.LudusError, match=r"training stopped: observation is not finite .* after 24 steps"):
        broken.train(total_steps=120)
    whole = make_trainer("host")
    whole.train(total_steps=24)
    assert_equal(contents(whole), contents(broken))
    assert np.isfinite(broken.policy(np.zeros(3))).all()


# What is saved


@pytest.mark.requirement("S4.10")
@pytest.mark.parametrize("how", BOTH)
def test_a_loaded_sac_policy_acts_as_the_trained_one_did(how, tmp_path):
    sac = small_sac(normalize_observations=True, replay_size=50)
    trainer = make_trainer(how, sac, run_dir=tmp_path / "run")
    trainer.train(total_steps=120)
    loaded = ludus.load_policy(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded(obs), trainer.policy(obs))
    assert loaded(obs).shape == (32, 2) and loaded(obs[0]).shape == (2,)
    assert loaded.algorithm.network == sac.network and float(loaded.state.observations.count) == 120
    env = environment("compiled")
    returns = [ludus.evaluate(policy, env, episodes=5).returns for policy in (loaded, trainer.policy)]
    np.testing.assert_array_equal(*returns)


def test_a_sac_policy_does_not_change_when_training_goes_on():
    trainer = make_trainer(sac=small_sac(learning_rate=1e-2))
    trainer.train(total_steps=60)
    policy, obs = trainer.policy, np.ones((4, 3), np.float32)
    before = policy(obs)
    trainer.train(total_steps=240)
    np.testing.assert_array_equal(before, policy(obs))
    assert (before != trainer.policy(obs)).any()


# Spaces


@dataclass(frozen=True)
class Anything(Environment):
    """Shows zeros or ones of any space, and takes any box."""

    observation_space: Box | Discrete
    action_space: Box
    max_episode_steps: ClassVar[int] = 5

    def reset(self, key):
        obs = jax.random.bernoulli(key, 0.5, self.observation_space.shape).astype(self.observation_space.dtype)
        return obs, obs

    def step(self, state, action, key):
        assert action.shape == self.action_space.shape
        obs = jax.random.bernoulli(key, 0.5, self.observation_space.shape).astype(self.observation_space.dtype)
        return obs, Step(obs, jnp.sum(action), False)


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (Box(0, 255, (4, 4, 1), "uint8"), Box(-1.0, 1.0, (1,))),
        (Discrete(5), Box(-0.3, 2.0, (2, 2))),
        (Box(-1.0, 1.0, ()), Box(0.0, 1.0, ())),
    ],
    ids=["image", "discrete", "scalar"],
)
def test_sac_learns_from_observations_and_actions_of_any_shape(observation_space, action_space):
    env = Anything(observation_space, action_space)
    trainer = make_trainer(env=environment("compiled", env=env), sac=small_sac(normalize_observations=True))
    result = trainer.train(total_steps=36)
    replay = trainer.state.learner.replay
    assert result.updates == 9 and replay.frames.dtype == observation_space.dtype
    assert replay.frames.shape[1:] == observation_space.shape
    assert trainer.policy(np.zeros(observation_space.shape)).shape == action_space.shape


# What is refused


@pytest.mark.parametrize(
    ("sac", "env"),
    [
        (small_sac(), "jax:CartPole-v1"),
        (small_sac(network=ludus.GRU(4)), "jax:Pendulum-v1"),
        (small_sac(replay_size=11), "jax:Pendulum-v1"),
    ],
    ids=["discrete actions", "no room for a sequence", "small replay"],
)
def test_what_cannot_work_is_refused_before_anything_is_compiled(sac, env):
    compiled_programs = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled_programs.append(event) if "backend_compile" in event else None
    )
    with pytest.raises(ludus.LudusError) as caught:
        make_trainer(sac=sac, env=ludus.make_env(env, num_envs=3))
    assert "\n" not in str(caught.value) and compiled_programs == []


# Memory


def test_the_training_loop_copies_nothing_of_the_replays_size():
    sac = small_sac(replay_size=100_000, unroll_length=3)  # a program that no other test makes
    trainer = make_trainer(sac=sac)
    trainer.train(total_steps=24)
    ((program, _),) = trainer.loop.repeat.programs.values()
    replay = trainer.state.learner.replay
    rings = [f"[{replay.num_frames}", f"[{replay.num_slots}"]
    copies = [x for x in program.as_text().splitlines() if " copy(" in x and any(ring in x for ring in rings)]
    assert copies == []
    assert program.memory_analysis().temp_size_in_bytes < 300_000
