"""An agent in its user's own loop: it learns what a trainer would, and says in one line what it was asked wrongly."""

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest
from dressed import DressedEnv
from oracles import flat
from probe_runs import GAMMA, SETTINGS
from zoo import CASES, RandomGym

import ludus
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import PROBES
from ludus.rollout.host import seeds_from
from ludus.runtime.compilation import jit
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete, MultiDiscrete
from ludus.training.agent import _update, saved_file

pytestmark = pytest.mark.slow

SMALL_PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2, "network": ludus.MLP((8,))}
SMALL_SAC = {
    "batch_size": 16,
    "replay_size": 512,
    "unroll_length": 8,
    "learning_starts": 40,
    "network": ludus.MLP((8,)),
}
VECTOR, CHOICE = Box(-1.0, 1.0, (3,)), Discrete(2)


def small(**changes) -> ludus.Agent:
    options = {"seed": 0} | {name: changes.pop(name) for name in ("num_envs", "seed", "total_steps") if name in changes}
    return ludus.Agent(ludus.PPO(**(SMALL_PPO | changes)), VECTOR, CHOICE, **options)


def drive(agent: ludus.Agent, env, updates: int) -> list[dict[str, float]]:
    """Step a host batch with the agent's own three calls, as a trainer would begin it."""
    obs = env.reset(seeds_from(stream(agent.seed, "begin"), env.num_envs))
    metrics = []
    while len(metrics) < updates:
        outcome = env.step(agent.select_action(obs))
        agent.observe(outcome.next_obs, outcome.reward, outcome.terminated, outcome.truncated)
        obs = outcome.obs
        if learnt := agent.update():
            metrics.append(learnt)
    return metrics


def walk(agent: ludus.Agent, steps: int, seed: int = 0, length: int = 7) -> list[dict[str, float]]:
    """A made-up world: observations at random, episodes of `length` steps."""
    rng, metrics = np.random.default_rng(seed), []
    n, shape = agent.spec.num_envs, agent.spec.observation_space.shape
    obs = rng.uniform(-1, 1, (n, *shape))
    for t in range(steps):
        agent.select_action(obs)
        obs = rng.uniform(-1, 1, (n, *shape))
        agent.observe(obs, rng.normal(size=n), np.full(n, t % length == length - 1), np.zeros(n, bool))
        metrics.append(agent.update())
    return [learnt for learnt in metrics if learnt]


def numbers(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


# Equal to the trainer

CUT = {"max_episode_steps": 9}  # so that episodes are truncated too
EQUAL = {
    "ppo": ("gym:CartPole-v1", CUT, ludus.PPO(**SMALL_PPO, normalize_observations=True, normalize_rewards=True)),
    "ppo with a memory": ("gym:CartPole-v1", CUT, ludus.PPO(**SMALL_PPO | {"network": ludus.GRU(4, (8,))})),
    "ppo with masks": (RandomGym(CASES["masked choice"]), {}, ludus.PPO(**SMALL_PPO)),
    "sac": ("gym:Pendulum-v1", CUT, ludus.SAC(**SMALL_SAC)),
}


@pytest.mark.parametrize("case", EQUAL)
def test_it_learns_what_a_trainer_learns_in_the_same_world(case):
    id, options, algorithm = EQUAL[case]
    env, num_envs, updates = ludus.make_env(id, num_envs=4, **options), 4, 5
    budget = updates * algorithm.rollout_length(num_envs) * num_envs
    trainer = ludus.Trainer(
        algorithm, env, ludus.Settings(seed=3, eval_frequency=0, eval_episodes_final=0, verbose=False)
    )
    trainer.train(total_steps=budget)
    own = env.remake(num_envs)
    agent = ludus.Agent(
        algorithm, own.observation_space, own.action_space, num_envs=num_envs, seed=3, total_steps=budget
    )
    metrics = drive(agent, own, updates)
    assert agent.steps == budget and agent.rollouts == updates
    assert sum(learnt["updates"] for learnt in metrics) == trainer.record.updates > 0
    learnt, expected = numbers(agent._state), numbers(trainer.state.learner)
    fresh = numbers(algorithm.init(stream(3, "init"), trainer.loop.spec))
    assert any(not np.allclose(a, b) for a, b in zip(expected, fresh, strict=True)), "the trainer learnt something"
    for a, b in zip(learnt, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    env.close()
    own.close()


# Learning

QUICK = SETTINGS | {"network": ludus.MLP((32,))}


@pytest.mark.parametrize("name", ["observed-reward", "delayed-reward", "matched-action"])
def test_probes_are_learnt_in_an_own_loop(name):
    probe = PROBES[name]()
    env = DressedEnv(JaxEnv(probe, 16, name), seed=1)
    agent = ludus.Agent(ludus.PPO(**QUICK), probe.observation_space, probe.action_space, num_envs=16, seed=1)
    drive(agent, env, updates=60)
    critic = agent.critic
    for obs, value in probe.optimal_values(GAMMA):
        assert abs(float(critic(np.asarray(obs))) - value) < 0.1
        if name == "matched-action":
            assert agent.select_action(np.repeat([obs], 16, axis=0), deterministic=True)[0] == probe.optimal_action(obs)


def test_cartpole_is_balanced_by_a_loop_over_gymnasium():
    env = gymnasium.make("CartPole-v1")
    ppo = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
    agent = ludus.Agent(ppo, env.observation_space, env.action_space, seed=0, total_steps=40_960)
    obs, _ = env.reset(seed=0)
    while agent.rollouts < 40:
        next_obs, reward, terminated, truncated, _ = env.step(agent.select_action(obs))
        agent.observe(next_obs, reward, terminated, truncated)
        agent.update()
        obs = env.reset()[0] if terminated or truncated else next_obs
    assert ludus.evaluate(agent.policy, ludus.make_env("CartPole-v1", 8), episodes=20).returns.mean() >= 400


# Every space, one environment at a time

LOOPS = ["discrete with a start", "bytes, unbounded box", "dict", "masked choice", "masked multi-discrete"]


@pytest.mark.parametrize("name", LOOPS)
def test_spaces_of_every_kind_and_masks_go_through_a_plain_loop(name):
    """The environment itself refuses actions outside its space or its mask."""
    env, case = RandomGym(CASES[name]), CASES[name]
    ppo = ludus.PPO(**SMALL_PPO | {"batch_size": 8, "minibatch_size": 8})
    agent = ludus.Agent(ppo, env.observation_space, env.action_space)
    obs, info = env.reset(seed=0)
    for _ in range(17):
        shown = ludus.Masked(obs, info["action_mask"]) if case.masks else obs
        agent.select_action(shown, deterministic=True)
        action = agent.select_action(shown)
        obs, reward, terminated, truncated, info = env.step(action)
        agent.observe(obs, reward, terminated, truncated)
        agent.update()
        if terminated or truncated:
            obs, info = env.reset()
    assert agent.rollouts == 2 and agent.recorded == 1


# Partial rollouts


@pytest.mark.requirement("S3.12")
@pytest.mark.parametrize("end", ["terminated", "truncated", "cut"])
def test_a_partial_rollout_teaches_what_a_rollout_of_just_that_length_would(end):
    part, whole = (small(num_envs=2, gamma=0.5, normalize_rewards=True) for _ in range(2))
    for agent in (part, whole):  # away from the start, where the critic knows nothing
        moved = tuple(p + 0.5 for p in agent._state.parameters)
        agent._state = dataclasses.replace(agent._state, parameters=moved)
    walk(part, 15, length=4)
    part.select_action(np.ones((2, 3)))
    part.observe(np.zeros((2, 3)), [1, 2], [end == "terminated"] * 2, [end == "truncated"] * 2)
    record = part._record
    cut = record.rollout(0.0)
    steps = jax.tree.map(lambda x: x[:16], cut.steps._replace(valid=None, truncated=record.truncated))
    expected = whole.learn(cut._replace(steps=steps))
    metrics = part.update(partial=True)
    assert cut.steps.valid.sum() == 32 and part.recorded == 0
    assert metrics["updates"] == expected["updates"] == 2, "one minibatch in each epoch; padding makes none"
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    np.testing.assert_allclose(flat(part._state.parameters), flat(whole._state.parameters), atol=1e-6)


def test_rollouts_of_every_length_share_one_program():
    network = ludus.MLP((7,))  # of a size that no other test has
    agent, other = (small(network=network, learning_rate=rate) for rate in (1e-3, 2e-3))
    update = jit(_update, agent._options, donate=("state",))
    before = update._cache_size()
    for steps in (5, 17, 30, 31):
        walk(agent, steps, length=100)
        assert agent.update(partial=True)
    walk(other, 9)
    assert other.update(partial=True)
    assert update._cache_size() - before == 1
    assert agent.steps == 83


def test_update_waits_for_a_whole_rollout_unless_told_otherwise():
    agent = small()
    assert agent.update() == {} and agent.update(partial=True) == {}
    assert walk(agent, 63) == [] and not agent.is_ready
    assert len(walk(agent, 1)) == 1
    assert walk(agent, 3) == [] and agent.recorded == 3
    assert agent.update(partial=True)["updates"] > 0


def test_metrics_are_plain_numbers_under_their_documented_names():
    from ludus.algorithms import ppo, sac

    (metrics,) = walk(small(), 64)
    assert metrics.keys() == ppo.METRICS.keys() | {"updates"}
    assert all(type(value) in (int, float) for value in metrics.values())
    agent = ludus.Agent(ludus.SAC(**SMALL_SAC), VECTOR, Box(-2.0, 2.0, (1,)), num_envs=2)
    warm, *_, last = walk(agent, 40)
    assert warm.keys() == {"updates", "replay_size"}, "nothing was learnt while warming up"
    assert last.keys() == sac.METRICS.keys() | {"updates"}


def test_total_steps_is_what_the_learning_rate_follows():
    rates = [learnt["learning_rate"] for learnt in walk(small(total_steps=256), 320)]
    np.testing.assert_allclose(rates, 3e-4 * np.array([1, 0.75, 0.5, 0.25, 0]), atol=1e-9)
    assert [learnt["learning_rate"] for learnt in walk(small(), 128)] == pytest.approx([3e-4, 3e-4])


# Choosing


def test_the_same_seed_chooses_and_learns_the_same_and_another_does_not():
    def run(seed: int) -> tuple[list, np.ndarray]:
        agent, rng = small(seed=seed), np.random.default_rng(0)
        actions = []
        for _ in range(70):
            actions.append(int(agent.select_action(rng.uniform(-1, 1, 3))))
            agent.observe(rng.uniform(-1, 1, 3), rng.normal(), False, False)
            agent.update()
        return actions, flat(agent._state.parameters)

    (actions, parameters), (again, same), (others, _) = run(1), run(1), run(2)
    assert actions == again != others
    np.testing.assert_array_equal(parameters, same)


@pytest.mark.requirement("S3.3")
def test_exploring_samples_anew_each_time_and_the_best_action_is_always_the_same():
    agent = ludus.Agent(ludus.PPO(**SMALL_PPO), VECTOR, Box(-5.0, 5.0, (1,)))
    obs = np.full(3, 0.5)
    explored = []
    for _ in range(200):
        action = agent.select_action(obs)
        explored.append(float(agent.extras["sample"][0, 0]))
        np.testing.assert_allclose(action, 5 * np.clip(agent.extras["sample"][0], -1, 1), atol=1e-6)
    assert len(set(explored)) == 200, "noise is never used twice, whether or not the step was observed"
    assert np.std(explored) == pytest.approx(1.0, rel=0.2), (
        "the first policy has a deviation of 1, in units of the bounds"
    )
    assert len({float(agent.select_action(obs, deterministic=True)[0]) for _ in range(5)}) == 1
    assert agent.select_action(obs, deterministic=True)[0] == pytest.approx(agent.policy(obs)[0])


def test_playing_disturbs_nothing_that_is_learnt():
    quiet, played = small(), small()
    rng = np.random.default_rng(0)
    for agent in (quiet, played):
        rng = np.random.default_rng(0)
        for _ in range(64):
            agent.select_action(rng.uniform(-1, 1, 3))
            if agent is played:
                agent.select_action(np.zeros(3), deterministic=True)
            agent.observe(rng.uniform(-1, 1, 3), rng.normal(), False, False)
        agent.update()
    np.testing.assert_array_equal(flat(quiet._state.parameters), flat(played._state.parameters))


def test_memory_is_that_of_the_running_episode():
    """Acting on in an episode equals replaying it; at its end the memory begins anew."""
    agent = small(network=ludus.GRU(4, (8,)), minibatch_size=64)
    obs = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    ends = [False, False, True, False, False, False, True, False, False]
    policy, memory = agent.policy, agent.policy.initial_memory()
    log_probs = []
    for t, end in enumerate(ends):
        action = agent.select_action(obs[t])
        expected, distribution = policy.algorithm.distribution(policy.state, memory, obs[t][None])
        log_probs.append((float(agent.extras["log_prob"][0]), float(distribution.log_prob(np.array([action]))[0])))
        agent.observe(obs[t], 0.0, end and t < 5, end and t > 5)
        memory = policy.initial_memory() if end else expected
        np.testing.assert_allclose(agent._memory, memory, atol=1e-6)
    assert np.abs(np.asarray(memory)).max() > 0
    np.testing.assert_allclose(*np.transpose(log_probs), atol=1e-6)


def test_what_the_user_does_with_arrays_afterwards_changes_nothing():
    agent = ludus.Agent(ludus.PPO(**SMALL_PPO), VECTOR, Box(-5.0, 5.0, (1,)))
    obs, next_obs = np.full(3, 0.5, np.float32), np.full(3, 0.25, np.float32)
    action = agent.select_action(obs)
    sample, before = agent.extras["sample"].copy(), agent._chosen.row.copy()
    action[:] = obs[:] = 99
    agent.observe(next_obs, 1.0, False, False)
    next_obs[:] = 99
    record = agent._record
    assert (record.obs[0] == 0.5).all() and (record.next_obs[0] == 0.25).all()
    np.testing.assert_array_equal(record.rows[0], before)
    np.testing.assert_array_equal(agent.extras["sample"], sample)


def test_a_policy_does_not_change_when_the_agent_learns_on():
    agent, obs = small(), np.full(3, 0.5)
    policy, critic = agent.policy, agent.critic
    before = np.asarray(policy.state.parameters[0]).copy(), critic(obs)
    assert walk(agent, 64)
    np.testing.assert_array_equal(policy.state.parameters[0], before[0])
    assert critic(obs) == before[1] != agent.critic(obs)


# Saving


def make(kind: str, seed: int) -> ludus.Agent:
    if kind == "sac":
        return ludus.Agent(ludus.SAC(**SMALL_SAC), VECTOR, Box(-2.0, 2.0, (1,)), seed=seed)
    options = {"network": ludus.GRU(4, (8,)), "minibatch_size": 64} if kind == "gru" else {}
    return small(seed=seed, normalize_observations=True, normalize_returns=True, **options)


def opinions(agent: ludus.Agent) -> tuple[np.ndarray, np.ndarray]:
    """What the policy does and what the critic says, on the same observations."""
    obs = np.random.default_rng(5).uniform(-1, 1, (32, 3)).astype(np.float32)
    policy, critic = agent.policy, agent.critic
    _, distribution = policy.algorithm.distribution(policy.state, policy.initial_memory(32), obs)
    action = np.zeros((32, 1), np.float32)
    return np.asarray(distribution.mode()), critic(obs, action) if agent.algorithm.values_actions else critic(obs)


@pytest.mark.requirement("S3.31")
@pytest.mark.parametrize("order", ["policy first", "value first"])
@pytest.mark.parametrize("kind", ["mlp", "gru", "sac"])
def test_policy_and_value_nets_are_saved_and_loaded_with_equal_outputs(kind, order, tmp_path):
    old, new = make(kind, 1), make(kind, 2)
    walk(old, 128)
    saves = [lambda: old.save_policy_net(tmp_path / "actor"), lambda: old.save_value_net(tmp_path / "critic")]
    loads = [lambda: new.load_policy_net(tmp_path / "actor"), lambda: new.load_value_net(tmp_path / "critic")]
    for save in saves:
        save()
    for load in loads if order == "policy first" else loads[::-1]:
        load()
    for a, b in zip(opinions(old), opinions(new), strict=True):
        np.testing.assert_array_equal(a, b)
    assert walk(new, 64), "it learns on"


def test_the_targets_of_loaded_critics_are_where_these_are(tmp_path):
    old, new = make("sac", 1), make("sac", 2)
    walk(old, 64)
    old.save_value_net(tmp_path / "critic")
    new.load_value_net(tmp_path / "critic")
    learner = new._state.learner
    jax.tree.map(np.testing.assert_array_equal, learner.target_critics, learner.parameters.critics)
    assert walk(new, 64)


@pytest.mark.requirement("S3.31")
@pytest.mark.parametrize("which", ["policy", "value"])
def test_loading_one_net_leaves_what_only_the_other_uses_as_it_was(which, tmp_path):
    old, new = small(seed=1), small(seed=2)
    before, wanted = opinions(new), opinions(old)
    getattr(old, f"save_{which}_net")(tmp_path / "net.safetensors")
    getattr(new, f"load_{which}_net")(tmp_path / "net.safetensors")
    after = opinions(new)
    loaded, kept = (0, 1) if which == "policy" else (1, 0)
    if which == "value":
        np.testing.assert_array_equal(after[loaded], wanted[loaded])
    names, parameters = new._state.network.names, new._state.parameters
    sources = {
        name: next(source for source, agent in (("old", old), ("new", new)) if np.array_equal(p, agent_p(agent, name)))
        for name, p in zip(names, parameters, strict=True)
        if p.any()
    }
    assert {source for name, source in sources.items() if ("critic" in name) == (which == "value")} == {"old"}
    assert {source for name, source in sources.items() if ("critic" in name) != (which == "value")} == {"new"}
    np.testing.assert_array_equal(after[kept], before[kept])


def agent_p(agent: ludus.Agent, name: str) -> np.ndarray:
    fresh = agent.algorithm.init(stream(agent.seed, "init"), agent.spec)
    return np.asarray(fresh.parameters[fresh.network.names.index(name)])


@pytest.mark.requirement("S3.31")
def test_a_saved_policy_is_complete_and_acts_without_the_agent(tmp_path):
    import optax

    agent = small(normalize_observations=True, optimizer=optax.adam(1e-3))
    walk(agent, 64)
    file = agent.save_policy_net(tmp_path / "new" / "pi_ckpt1")
    assert file == tmp_path / "new" / "pi_ckpt1" and file.is_file()
    loaded, obs = ludus.load_policy(file), np.full(3, 0.25)
    assert loaded(obs) == agent.policy(obs)
    assert float(loaded.state.observations.count) == 64


@pytest.mark.requirement("S3.31", "S3.34")
@pytest.mark.parametrize(
    ("there", "given"),
    [
        (["net", "net.safetensors", "net.pth"], "net"),
        (["net.safetensors", "net.pth"], "net.pth"),
        (["net.safetensors", "net.pth"], "net"),
        (["net.pt"], "net"),
        (["net.safetensors"], "net.pth"),
        (["run.1/net.v2.safetensors"], "run.1/net.v2"),
        ([], "net.pth"),
    ],
)
def test_the_file_of_that_very_name_is_loaded_and_only_in_its_place_another(there, given, tmp_path):
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert saved_file(tmp_path / given) == tmp_path / (given if given in there or not there else there[0])


@pytest.mark.requirement("S3.31", "S3.34")
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ""])
def test_a_file_has_the_name_it_was_given_and_pytorchs_are_loaded_too(suffix, tmp_path):
    torch = pytest.importorskip("torch")
    algorithm = {"normalize_observations": True, "normalize_returns": True, "normalize_rewards": True}
    old, new = small(seed=1, **algorithm), small(seed=2, **algorithm)
    walk(old, 64)
    assert old.save_policy_net(tmp_path / f"actor{suffix}") == tmp_path / f"actor{suffix}"
    assert old.save_value_net(tmp_path / f"critic{suffix}") == tmp_path / f"critic{suffix}"
    is_pytorchs = suffix in (".pth", ".pt")
    assert not list(tmp_path.glob("*.safetensors")) and (tmp_path / "actor.json").exists() == is_pytorchs
    if is_pytorchs:
        state = torch.load(tmp_path / f"actor{suffix}", weights_only=True)
        assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    new.load_policy_net(tmp_path / f"actor{suffix}")
    new.load_value_net(tmp_path / f"critic{suffix}")
    for a, b in zip(opinions(old), opinions(new), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(new.policy.state.observations.count) == 64 and walk(new, 64)


def test_pytorch_files_of_others_and_without_pytorch_are_refused_in_one_line(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    agent = small()
    torch.save({"weight": torch.zeros(3)}, tmp_path / "theirs.pth")
    (tmp_path / "broken.pth").write_bytes(agent.save_policy_net(tmp_path / "ours.pth").read_bytes()[:-100])
    wrong(r"theirs.pth: not a readable policy file \(a PyTorch file", agent.load_policy_net, tmp_path / "theirs.pth")
    wrong("broken.pth: not a readable policy file", agent.load_policy_net, tmp_path / "broken.pth")
    monkeypatch.setattr(ludus.training.agent, "find_spec", lambda name: None)
    wrong("actor.pth: a .pth file is PyTorch's, which is not installed", agent.save_policy_net, tmp_path / "actor.pth")
    agent.load_policy_net(tmp_path / "ours.pth")


@pytest.mark.requirement("S3.31")
def test_bounds_that_an_agent_was_not_told_come_with_the_file(tmp_path):
    told = ludus.Agent(ludus.PPO(**SMALL_PPO), Box(-3.0, 3.0, (2,)), Box(-2.0, 2.0, (1,)), seed=1)
    untold = ludus.Agent(ludus.PPO(**SMALL_PPO), Box(-np.inf, np.inf, (2,)), Box(-np.inf, np.inf, (1,)), seed=2)
    obs, before = np.full((1, 2), 0.5), untold.policy
    told.save_policy_net(tmp_path / "actor")
    told.save_value_net(tmp_path / "critic")
    untold.load_policy_net(tmp_path / "actor")
    untold.load_value_net(tmp_path / "critic")
    assert untold.spec == told.spec and before.spec != told.spec
    np.testing.assert_array_equal(untold.select_action(obs, True), told.select_action(obs, True))
    np.testing.assert_array_equal(untold.critic(obs), told.critic(obs))
    other = ludus.Agent(ludus.PPO(**SMALL_PPO), Box(-3.0, 3.0, (2,)), Box(-1.0, 1.0, (1,)))
    wrong(r"its action_space is Box\(low=-2.0", other.load_policy_net, tmp_path / "actor")
    wide = ludus.Agent(ludus.PPO(**SMALL_PPO), Box(-9.0, 9.0, (2,)), Box(-2.0, 2.0, (1,)))
    wide.load_policy_net(tmp_path / "actor")
    assert wide.spec.observation_space == Box(-9.0, 9.0, (2,))


@pytest.mark.requirement("S3.31")
def test_a_net_that_fits_but_computes_something_else_is_refused(tmp_path):
    small(seed=1).save_policy_net(tmp_path / "actor")
    relu = small(network=ludus.MLP((64, 64), "relu"))
    wrong(
        r"its network is MLP\(.*tanh.*but it is to be loaded into MLP\(.*relu", relu.load_policy_net, tmp_path / "actor"
    )
    normalised = small(normalize_observations=True)
    wrong("it was made with normalize_observations=False", normalised.load_policy_net, tmp_path / "actor")


def test_files_of_another_kind_are_refused_in_one_line(tmp_path):
    agent = small()
    agent.save_policy_net(tmp_path / "actor")
    agent.save_value_net(tmp_path / "critic")
    other = ludus.Agent(ludus.PPO(**SMALL_PPO), VECTOR, Discrete(3))
    for load, path, match in [
        (agent.load_value_net, "actor", "ludus-critic-1"),
        (agent.load_policy_net, "critic", "ludus-policy-1"),
        (agent.load_policy_net, "nothing", "no such policy file"),
        (other.load_policy_net, "actor", r"its action_space is Discrete\(n=2"),
        (
            small(network=ludus.MLP((9,))).load_policy_net,
            "actor",
            r"but it is to be loaded into MLP\(hidden_sizes=\(9,",
        ),
    ]:
        with pytest.raises(ludus.LudusError, match=match) as error:
            load(tmp_path / path)
        assert "\n" not in str(error.value)


# Mistakes


def wrong(match: str, call, *arguments, **options) -> None:
    with pytest.raises(ludus.LudusError, match=match) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)


def test_calls_in_the_wrong_order_are_one_clear_line():
    agent, obs = small(), np.zeros(3)
    outcome = obs, 1.0, False, False
    wrong(r"observe: .*call select_action\(obs\) before each observe", agent.observe, *outcome)
    agent.select_action(obs, deterministic=True)
    wrong("without deterministic=True", agent.observe, *outcome)
    agent.select_action(obs)
    agent.observe(*outcome)
    wrong("before each observe", agent.observe, *outcome)
    for _ in range(63):
        agent.select_action(obs)
        agent.observe(*outcome)
    wrong(r"select_action: 64 steps are waiting .*call update\(\)", agent.select_action, obs)
    assert agent.update()
    wrong("before each observe", agent.observe, *outcome)
    agent.select_action(obs)
    agent.observe(*outcome)
    agent.select_action(obs)
    assert agent.update(partial=True)
    wrong("before each observe", agent.observe, *outcome)


def test_where_an_episode_is_over_nothing_need_be_allowed():
    agent = small()
    agent.select_action(ludus.Masked(np.zeros(3), [True, False]))
    agent.observe(ludus.Masked(np.zeros(3), [False, False]), 1.0, True, False)
    assert agent.recorded == 1


def test_values_unlike_their_space_are_one_clear_line():
    agent, obs = small(), np.zeros(3)
    wrong(r"select_action: obs has shape \(4,\), but must have \(1, 3\)", agent.select_action, np.zeros(4))
    wrong(r"obs has shape \(2, 3\)", agent.select_action, np.zeros((2, 3)))
    wrong("obs holds a NaN or an infinity", agent.select_action, [0, np.nan, 0])
    wrong("obs holds a NaN or an infinity", agent.select_action, [0, 1e300, 0])
    wrong("obs holds something else than numbers", agent.select_action, ["a", "b", "c"])
    wrong("masks are for Discrete|action_mask must hold 1 x 2", agent.select_action, ludus.Masked(obs, [1, 1, 1]))
    wrong("forbids every action", agent.select_action, ludus.Masked(obs, [0, 0]))
    agent.select_action(obs)
    wrong(r"observe: next_obs has shape \(\)", agent.observe, 0.0, 1.0, False, False)
    wrong("observe: reward must hold one number", agent.observe, obs, [1.0, 2.0], False, False)
    wrong("observe: reward must hold one number .* got None", agent.observe, obs, None, False, False)
    wrong("observe: reward=nan: must be finite", agent.observe, obs, np.nan, False, False)
    wrong("observe: terminated=0.5: must be True or False", agent.observe, obs, 1.0, 0.5, False)
    wrong("observe: truncated must hold one number", agent.observe, obs, 1.0, False, "no")
    assert agent.recorded == 0, "nothing of all this was recorded"
    agent.observe(obs, 1.0, False, False)
    wrong("Masked at every step or at none", agent.select_action, ludus.Masked(obs, [1, 1]))
    two = small(num_envs=2)
    wrong(r"obs has shape \(3,\), but must have \(2, 3\) for 2 environments", two.select_action, obs)
    nested = ludus.Agent(ludus.PPO(**SMALL_PPO), gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)}), CHOICE)
    wrong(r"unlike its space: a dict with keys \['a'\]", nested.select_action, obs)


def test_an_agent_that_cannot_work_is_refused_before_anything_is_compiled():
    ppo = ludus.PPO(**SMALL_PPO)
    wrong("must be an algorithm such as", ludus.Agent, ludus.PPO, VECTOR, CHOICE)
    wrong("observation space .* is not supported", ludus.Agent, ppo, "vector", CHOICE)
    wrong("num_envs=0", ludus.Agent, ppo, VECTOR, CHOICE, num_envs=0)
    wrong("num_envs=3: must divide", ludus.Agent, ppo, VECTOR, CHOICE, num_envs=3)
    wrong("seed=-1", ludus.Agent, ppo, VECTOR, CHOICE, seed=-1)
    wrong("total_steps=0", ludus.Agent, ppo, VECTOR, CHOICE, total_steps=0)
    wrong("SAC: action space", ludus.Agent, ludus.SAC(**SMALL_SAC), VECTOR, CHOICE)


def test_a_memory_cannot_be_played_without_its_episodes():
    agent = small(network=ludus.GRU(4, (8,)), minibatch_size=64)
    wrong(r"play with agent.policy\(obs, memory\)", agent.select_action, np.zeros(3), deterministic=True)


def test_a_fault_in_learning_is_told_and_changes_nothing():
    agent = small(learning_rate=3e38)
    before = flat(agent._state.parameters)
    with pytest.raises(ludus.LudusError, match=r"update: \w+ is not finite .* nothing was learnt from it"):
        walk(agent, 640)
    assert np.isfinite(flat(agent._state.parameters)).all() and len(before)
    assert agent.recorded == 0
    agent.select_action(np.zeros(3))


def test_spaces_of_gymnasium_and_of_ludus_are_the_same():
    theirs = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.MultiDiscrete([2, 3])
    ours = VECTOR, MultiDiscrete((2, 3))
    ppo = ludus.PPO(**SMALL_PPO)
    assert ludus.Agent(ppo, *theirs).spec == ludus.Agent(ppo, *ours).spec
