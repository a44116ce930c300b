"""Behaviour cloning: its figures against NumPy, memories as they act, every kind of space, and learning."""

import dataclasses

import jax
import numpy as np
import pytest
import zoo
from learned_cases import learned

import ludus
from ludus.algorithms.demonstrated import divided, examples_of, statistics_of
from ludus.algorithms.hyperparameters import as_arrays
from ludus.networks.action_scaling import from_environment, to_environment
from ludus.networks.distributions import sampling_noise
from ludus.runtime.demonstrations import from_arrays
from ludus.spaces import Box, Discrete, flatten
from ludus.training.record_demonstrations import random_action
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of
from ludus.types import LudusError, Rollout, Spec, Transition

KEY = jax.random.key(5)
SEEN, CHOICE, ARM = Box(-10.0, 10.0, (3,)), Discrete(4, start=2), Box((-1.0, 0.0), (3.0, 0.5), (2,))
SMALL = ludus.Transformer(context_length=5, model_dim=8, num_layers=2, num_heads=2, feedforward_dim=8)
QUIET = ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False)


def shown(action_space, lengths=(4, 1, 7, 6, 2, 5, 5, 3, 6, 4), seed=0, mask=None):
    """Random demonstrations of episodes of these lengths."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    spec = Spec(SEEN, action_space, 1)
    noise = sampling_noise(action_space, jax.random.key(seed), (count,))
    ends = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    obs = rng.normal(2.0, 3.0, (count, 3)).clip(-10, 10)
    return from_arrays(
        SEEN, action_space, obs, jax.device_get(random_action(spec, mask, noise)), terminated=ends, action_mask=mask
    )


def blank_rollout():
    obs = np.zeros((1, 1, 3), np.float32)
    off = np.zeros((1, 1), bool)
    return Rollout(Transition(obs, np.zeros((1, 1), np.int32), off.astype(np.float32), off, off, obs, {}), ())


@pytest.fixture
def file(tmp_path):
    def written(demonstrations):
        ludus.write_demonstrations(demonstrations, tmp_path / "demos.safetensors")
        return str(tmp_path / "demos.safetensors")

    return written


def told(algorithm, spec):
    """The metrics of one update whose only minibatch is everything, before its gradient step; and the state."""
    state = algorithm.init(KEY, spec)
    return algorithm.update(state, blank_rollout(), KEY).metrics, state


def whole(path, **options):
    return ludus.BC(demonstrations=path, held_out_share=0.0, minibatch_size=10_000, **options)


def oracle(algorithm, state, demonstrations):
    """Figures in float64, from the distribution's parameters as acting computes them, episode by episode."""
    policy, nll, right, error = algorithm.policy(state), [], [], []
    step = jax.jit(algorithm.distribution)
    for first, last in zip(demonstrations.starts, demonstrations.ends, strict=True):
        memory = algorithm.initial_memory(policy, 1)
        for row in range(first, last + 1):
            obs = demonstrations.obs[row : row + 1]
            if demonstrations.action_mask is not None:
                obs = ludus.Masked(obs, demonstrations.action_mask[row : row + 1])
            memory, chosen = step(policy, memory, obs)
            action = demonstrations.action[row]
            if isinstance(demonstrations.action_space, Discrete):
                logits = np.float64(chosen.logits[0])
                nll.append(np.log(np.exp(logits - logits.max()).sum()) - (logits - logits.max())[action - 2])
                right.append(logits.argmax() == action - 2)
                continue
            low, high = (np.float64(x) for x in ARM.bounds)
            unit = (action - (low + high) / 2) / ((high - low) / 2)
            mean, std = np.float64(chosen.mean[0]), np.maximum(np.exp(np.float64(chosen.log_std[0])), 0.05)
            slope = np.zeros(2)
            if algorithm.actor == "sac":
                bounded = np.clip(unit, -0.999, 0.999)
                slope, error_of = np.log(1 - bounded**2), (np.tanh(mean) - unit) ** 2
                raw = np.arctanh(bounded)
            else:
                raw, error_of = unit, (mean - unit) ** 2
            nll.append((0.5 * ((raw - mean) / std) ** 2 + np.log(std) + 0.5 * np.log(2 * np.pi) + slope).sum())
            error.append(error_of.mean())
    return {"nll": nll, "accuracy": right, "action_error": error}


def some_allowed():
    """A mask that forbids a value or two at each of 43 steps."""
    mask = np.random.default_rng(9).random((43, 4)) < 0.6
    mask[np.arange(43), np.arange(43) % 4] = True
    return mask


@pytest.mark.slow
@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize(("actor", "space", "loss"), [
    ("ppo", CHOICE, "nll"), ("ppo", "masked", "nll"), ("ppo", ARM, "nll"), ("ppo", ARM, "mse"), ("sac", ARM, "nll"),
    ("sac", ARM, "mse"),
])  # fmt: skip
def test_figures_are_those_of_numpy(file, actor, space, loss):
    demonstrations = shown(CHOICE, mask=some_allowed()) if space == "masked" else shown(space)
    space = demonstrations.action_space
    algorithm = whole(file(demonstrations), actor=actor, loss=loss)
    metrics, state = told(algorithm, Spec(SEEN, space, 1))
    expected = {name: np.mean(rows) for name, rows in oracle(algorithm, state, demonstrations).items() if rows}
    assert {name for name in metrics if name in ("nll", "accuracy", "action_error")} == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(float(metrics[name]), value, rtol=2e-5, err_msg=name)
    assert float(metrics["policy_loss"]) == float(metrics["nll" if loss == "nll" else "action_error"])


@pytest.mark.slow
@pytest.mark.parametrize("segment_length", [None, 9])
@pytest.mark.parametrize(("network", "actor"), [
    (ludus.GRU(4, (5,)), "ppo"), (ludus.GRU(4, (5,), shared=True), "ppo"), (SMALL, "ppo"), (SMALL, "sac"),
])  # fmt: skip
def test_segments_remember_as_acting_does(file, network, actor, segment_length):
    """Several episodes lie in a segment, and padding after them: nothing leaks, and nothing of it counts."""
    demonstrations = shown(ARM)
    algorithm = whole(file(demonstrations), actor=actor, network=network, segment_length=segment_length)
    metrics, state = told(algorithm, Spec(SEEN, ARM, 1))
    assert state.examples.segment_length == (segment_length or 7)
    assert float(state.examples.weight.sum()) == len(demonstrations) < state.examples.weight.size
    expected = oracle(algorithm, state, demonstrations)
    np.testing.assert_allclose(float(metrics["nll"]), np.mean(expected["nll"]), rtol=2e-5)


def test_a_long_episode_is_cut_into_segments_that_show_half_of_one_again():
    demonstrations = shown(CHOICE, lengths=(11, 2))
    made = examples_of(demonstrations, Spec(SEEN, CHOICE, 1), 4, 4)
    index = [[np.flatnonzero((demonstrations.obs == row).all(1))[0] for row in rows] for rows in np.array(made.obs)]
    expected = [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [8, 9, 10], [11, 12]]
    kept = [[i for i, w in zip(row, weight, strict=True) if w] for row, weight in zip(index, made.weight, strict=True)]
    assert kept == [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9], [10], [11, 12]]
    assert [row[: len(part)] for row, part in zip(index, expected, strict=True)] == expected
    ended = np.array(made.ended)
    assert ended[0].tolist() == [False, False, False, True] and ended[5].tolist() == [False, True, True, True]


def test_held_out_episodes_are_never_learnt_from_and_the_same_in_every_run(file):
    demonstrations = shown(CHOICE)
    learnt, kept = divided(demonstrations, 0.3)
    assert (learnt.num_episodes, kept.num_episodes) == (7, 3)
    rows = {tuple(row) for row in learnt.obs}, {tuple(row) for row in kept.obs}
    assert not rows[0] & rows[1] and len(rows[0] | rows[1]) == len(demonstrations)
    assert divided(demonstrations, 0.09)[1] is None
    algorithm = ludus.BC(demonstrations=file(demonstrations), held_out_share=0.3, minibatch_size=7, epochs_per_update=3)
    spec = Spec(SEEN, CHOICE, 1)
    states = [algorithm.init(jax.random.key(seed), spec) for seed in (0, 1)]
    np.testing.assert_array_equal(states[0].held_out.obs, states[1].held_out.obs)
    made = jax.jit(algorithm.update)(states[0], blank_rollout(), KEY)
    assert int(made.updates) == 3 * -(-len(learnt) // 7)
    # What is held out is measured after the update, and nothing else of it reaches the parameters.
    other = dataclasses.replace(states[0], held_out=dataclasses.replace(states[0]).held_out._replace(
        action=3 - states[0].held_out.action))  # fmt: skip
    again = jax.jit(algorithm.update)(other, blank_rollout(), KEY)
    assert float(again.metrics["held_out_nll"]) != float(made.metrics["held_out_nll"])
    for a, b in zip(made.state.parameters, again.state.parameters, strict=True):
        np.testing.assert_array_equal(a, b)


def test_observations_are_normalised_by_what_is_learnt_from(file):
    demonstrations = shown(CHOICE)
    algorithm = ludus.BC(demonstrations=file(demonstrations), held_out_share=0.3)
    learnt = divided(demonstrations, 0.3)[0]
    statistics = algorithm.init(KEY, Spec(SEEN, CHOICE, 1)).observations
    np.testing.assert_allclose(statistics.mean, learnt.obs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, learnt.obs.var(0), rtol=1e-5)
    assert float(statistics.count) == len(learnt)
    assert statistics_of(from_arrays(Discrete(3), CHOICE, [0, 1], [2, 3])) is None


def test_padding_of_the_last_minibatch_weighs_nothing(file):
    demonstrations = shown(CHOICE)
    made = examples_of(demonstrations, Spec(SEEN, CHOICE, 1), 10)
    assert len(made.weight) == 50 and float(made.weight.sum()) == len(demonstrations) == 43
    algorithm = ludus.BC(demonstrations=file(demonstrations), minibatch_size=10, held_out_share=0.0, learning_rate=0.0)
    metrics, state = told(algorithm, Spec(SEEN, CHOICE, 1))
    expected = oracle(algorithm, state, demonstrations)
    np.testing.assert_allclose(float(metrics["nll"]), np.mean(expected["nll"]), rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.CASES)
def test_actions_of_every_space_come_back_as_they_were(name):
    env = ludus.make_env(zoo.make(name, "jax"), 3)
    spec = Spec(env.observation_space, env.action_space, 3)
    action = random_action(spec, None, sampling_noise(env.action_space, KEY, (3,)))
    back = to_environment(env.action_space, from_environment(env.action_space, action))
    for ours, theirs in zip(*(flatten(env.action_space, x) for x in (action, back)), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize(("name", "how", "network"), [
    ("nested", "jax", ludus.MLP((32,))), ("masked multi-discrete", "gymnasium", ludus.MLP((32,))),
    ("dict", "gymnasium", ludus.GRU(16, (16,))), ("masked choice", "jax", SMALL),
    ("multi-discrete of two axes, binary actions", "jax", ludus.MLP((32,))),
])  # fmt: skip
def test_every_space_is_learnt_from_in_every_kind_of_environment(name, how, network, tmp_path):
    env = ludus.make_env(zoo.make(name, how), num_envs=2)
    expert = learned(ludus.PPO(batch_size=64, minibatch_size=64), Spec(env.observation_space, env.action_space, 2))[0]
    ludus.write_demonstrations(ludus.record_demonstrations(expert, env, episodes=40), tmp_path / "demos")
    algorithm = ludus.BC(demonstrations=str(tmp_path / "demos"), network=network, learning_rate=3e-3)
    ludus.Trainer(algorithm, env, QUIET, run_dir=tmp_path / "run").train(total_steps=2 * 30)
    env.close()
    rows = [row for row in ludus.runs.journal.read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert rows[-1]["nll"] < rows[0]["nll"] - 0.3
    assert rows[-1].get("accuracy", 1.0) > rows[0].get("accuracy", 0.0)


class Recalled(ludus.Environment):
    """What is shown at first must be done three steps later; chance decides what is shown between."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, key):
        bit = jax.random.bernoulli(key).astype(np.float32)
        return (bit, np.int32(0)), jax.numpy.stack([2 * bit - 1, 1.0])

    def step(self, state, action, key):
        bit, t = state
        right = (t == 3) & (action == bit)
        noise = jax.random.uniform(key, minval=-1.0)
        step = ludus.Step(jax.numpy.stack([noise, 0.0]), right.astype(np.float32), t == 3)
        return (bit, t + 1), step


def recalled(path, episodes=200):
    """Demonstrations of one who remembers."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, episodes)
    obs = rng.uniform(-1, 1, (episodes, 4, 2)).astype(np.float32)
    obs[:, :, 1], obs[:, 0, 0], obs[:, 0, 1] = 0.0, 2.0 * bits - 1, 1.0
    ends = np.tile([False, False, False, True], episodes)
    space = Recalled.observation_space
    action = np.repeat(bits, 4)
    ludus.write_demonstrations(from_arrays(space, Discrete(2), obs.reshape(-1, 2), action, terminated=ends), path)


@pytest.mark.slow
@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize(("network", "least", "most"), [
    (ludus.GRU(16), 0.98, 1), (ludus.Transformer(8, 16, 1, 2), 0.98, 1), (ludus.MLP(), 0.3, 0.7),
])  # fmt: skip
def test_a_memory_is_cloned_and_without_one_it_is_not(network, least, most, tmp_path):
    recalled(tmp_path / "demos.safetensors")
    algorithm = ludus.BC(demonstrations=str(tmp_path / "demos.safetensors"), network=network, learning_rate=3e-3)
    trainer = ludus.Trainer(algorithm, ludus.make_env(Recalled, num_envs=1), ludus.Settings(verbose=False))
    evaluation = trainer.train(total_steps=40).evaluation
    assert least <= evaluation.returns.mean() <= most


@pytest.mark.slow
@pytest.mark.requirement("S2.24")
def test_a_run_resumes_bit_by_bit(tmp_path):
    recalled(tmp_path / "demos.safetensors", 40)
    algorithm = ludus.BC(demonstrations=str(tmp_path / "demos.safetensors"), network=ludus.GRU(8))

    def trainer(name):
        settings = dataclasses.replace(QUIET, checkpoint=ludus.CheckpointOptions(every_iterations=3))
        return ludus.Trainer(algorithm, ludus.make_env(Recalled, num_envs=1), settings, run_dir=tmp_path / name)

    trainer("straight").train(total_steps=6)
    trainer("broken").train(total_steps=3)
    (tmp_path / "demos.safetensors").unlink()  # others of the same shape now: those of the checkpoint count
    rng = np.random.default_rng(1)
    space, ends = Recalled.observation_space, np.tile([False, False, False, True], 40)
    other = from_arrays(space, Discrete(2), rng.uniform(-1, 1, (160, 2)), rng.integers(0, 2, 160), terminated=ends)
    ludus.write_demonstrations(other, tmp_path / "demos.safetensors")
    env = ludus.make_env(Recalled, num_envs=1)
    ludus.Trainer.resume(tmp_path / "broken", env=env, total_steps=6, verbose=False).train()
    assert differences(state_of(tmp_path / "straight"), state_of(tmp_path / "broken")) == []


def test_deviations_stop_where_they_are_told_to(file):
    """A demonstrator without chance would drive them to nothing, and PPO could not explore from there."""
    demonstrations = dataclasses.replace(shown(ARM), action=np.tile([1.0, 0.25], (43, 1)))
    algorithm = whole(file(demonstrations), learning_rate=0.01, min_deviation=0.2, epochs_per_update=400)
    spec = Spec(SEEN, ARM, 1)
    state = jax.jit(as_arrays(algorithm).update)(algorithm.init(KEY, spec), blank_rollout(), KEY).state
    deviation = np.exp(np.array(state.network.merge(state.parameters).actor_head.log_std[...]))
    assert (deviation > 0.15).all() and (deviation < 0.21).all()


@pytest.mark.parametrize(("words", "said"), [
    ({"actor": "dqn"}, "algorithm.actor=dqn: must be ppo or sac"),
    ({"loss": "l1"}, "algorithm.loss=l1: must be nll or mse"),
    ({"held_out_share": 1.0}, "algorithm.held_out_share=1.0: must be below 1"),
])  # fmt: skip
def test_settings_that_are_none_are_refused(words, said):
    with pytest.raises(LudusError, match=said):
        ludus.BC(**words)


def test_demonstrations_that_do_not_fit_are_one_line(file, tmp_path):
    path, spec = file(shown(CHOICE)), Spec(SEEN, CHOICE, 1)
    ludus.BC(demonstrations=path).validate(spec)
    (tmp_path / "empty.safetensors").touch()
    mask = np.ones((43, 4), bool)
    mask[7, shown(CHOICE).action[7] - 2] = False
    forbidden = tmp_path / "forbidden"
    ludus.write_demonstrations(dataclasses.replace(shown(CHOICE), action_mask=mask), forbidden)
    cases = [
        (ludus.BC(), spec, r"algorithm\.demonstrations: required"),
        (ludus.BC(demonstrations="nowhere"), spec, "nowhere: no such file"),
        (ludus.BC(demonstrations=str(tmp_path / "empty.safetensors")), spec, "it is empty"),
        (ludus.BC(demonstrations=path), Spec(SEEN, Discrete(3), 1), "their action space is Discrete"),
        (ludus.BC(demonstrations=path), Spec(ARM, CHOICE, 1), "their observation space is Box"),
        (ludus.BC(demonstrations=str(forbidden)), spec, "forbidden: action 7 is one that action_mask forbids"),
        (ludus.BC(demonstrations=path, actor="sac"), spec, "BC with actor=sac: action space Discrete"),
        (ludus.BC(demonstrations=path, network=lambda spec, rngs: jax), spec, "must build a flax.nnx.Module"),
    ]
    for algorithm, given, said in cases:
        with pytest.raises(LudusError, match=said) as error:
            algorithm.validate(given)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_mistakes_on_the_command_line_end_with_2(run, tmp_path):
    ludus.write_demonstrations(shown(CHOICE), tmp_path / "demos.safetensors")
    (tmp_path / "empty.safetensors").touch()
    words = "train", "env=CartPole-v1", "algorithm=bc", "run_dir=made", "verbose=false"
    for more in ([], ["algorithm.demonstrations=gone"], ["algorithm.demonstrations=empty.safetensors"],
                 ["algorithm.demonstrations=demos.safetensors"], ["init_from=gone"]):  # fmt: skip
        code, _, err = run(*words, *more)
        assert (code, len(err.splitlines()), (tmp_path / "made").exists()) == (2, 1, False), err


@pytest.mark.slow
def test_only_the_first_checkpoint_holds_large_demonstrations(tmp_path):
    recalled(tmp_path / "demos.safetensors", 60_000)
    algorithm = ludus.BC(demonstrations=str(tmp_path / "demos.safetensors"), minibatch_size=100_000)
    settings = dataclasses.replace(QUIET, checkpoint=ludus.CheckpointOptions(every_iterations=1, keep_last=3))
    trainer = ludus.Trainer(algorithm, ludus.make_env(Recalled, num_envs=1), settings, run_dir=tmp_path / "run")
    trainer.train(total_steps=3)
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    inodes = {path.stat().st_ino: path.stat().st_size for path in files}
    assert 216_000 * 4 * 4 < sum(inodes.values()) < 2 * 216_000 * 4 * 4  # obs, action and weight once
    env = ludus.make_env(Recalled, num_envs=1)
    resumed = ludus.Trainer.resume(tmp_path / "run", env=env, total_steps=4, verbose=False)
    resumed.train()
    np.testing.assert_array_equal(resumed.learner.examples.obs, trainer.learner.examples.obs)
