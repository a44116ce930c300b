"""Recording demonstrations: whole episodes of a policy, in both kinds of environment, and `ludus record`."""

import numpy as np
import pytest
import zoo
from learned_cases import learned

import ludus
from ludus.envs.batch import JaxEnv
from ludus.envs.native.memory_tasks import TMaze
from ludus.spaces import flatten
from ludus.training.record_demonstrations import _Lane, record_demonstrations
from ludus.types import LudusError, Masked, Spec

pytestmark = pytest.mark.slow

PPO = ludus.PPO(batch_size=64, minibatch_size=64)


def made(case, how, num_envs=3):
    env = ludus.make_env(zoo.make(case, how), num_envs=num_envs)
    return env, learned(PPO, Spec(env.observation_space, env.action_space, num_envs))[0]


@pytest.mark.parametrize(("case", "how"), [("nested", "jax"), ("masked choice", "gymnasium")])
def test_greedy_demonstrations_are_what_the_policy_does(case, how):
    env, policy = made(case, how)
    demonstrations = record_demonstrations(policy, env, episodes=5, seed=3)
    assert demonstrations.num_episodes == 5
    obs = demonstrations.obs
    if demonstrations.action_mask is not None:
        obs = Masked(obs, demonstrations.action_mask)
    assert (demonstrations.action_mask is not None) == case.startswith("masked")
    acted = flatten(env.action_space, policy(obs))
    for theirs, ours in zip(flatten(env.action_space, demonstrations.action), acted, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
    after = flatten(env.observation_space, demonstrations.next_obs)[0]
    assert not np.array_equal(after, flatten(env.observation_space, demonstrations.obs)[0])
    env.close()


@pytest.mark.parametrize("case", ["dict", "masked multi-discrete"])
def test_random_actions_are_of_the_space_and_heed_masks(case):
    env, policy = made(case, "jax")  # which notices a wrong action at once
    demonstrations = record_demonstrations(policy, env, episodes=4, random_actions=1.0)
    assert demonstrations.num_episodes == 4 and np.isfinite(demonstrations.reward).all()


def cartpole(num_envs=4):
    env = ludus.make_env("CartPole-v1", num_envs=num_envs)
    return env, learned(PPO, Spec(env.observation_space, env.action_space, num_envs))[0]


def test_a_share_of_the_actions_is_random():
    env, policy = cartpole()
    demonstrations = record_demonstrations(policy, env, episodes=60, random_actions=0.5)
    agree = (policy(demonstrations.obs) == demonstrations.action).mean()
    count = len(demonstrations)
    assert abs(agree - 0.75) < 4 * np.sqrt(0.75 * 0.25 / count)  # right by the policy, or by chance half of the time
    about = demonstrations.about
    assert (about["random_actions"], about["algorithm"], demonstrations.env) == (0.5, "ppo", env.id)


def test_the_same_seed_gives_the_same_demonstrations_and_another_does_not():
    env, policy = cartpole()
    one, two, other = (record_demonstrations(policy, env, 5, seed, deterministic=False) for seed in (1, 1, 2))
    assert one == two and one != other


def test_long_episodes_are_not_left_out():
    """Every environment plays its share, however long its episodes take: else short ones would be too many."""
    env, policy = cartpole(num_envs=4)
    many = record_demonstrations(policy, env, 10, deterministic=False)
    assert many.num_episodes == 10 and many.terminated[many.ends].all()
    assert len(set(map(tuple, many.obs[many.starts].tolist()))) == 10  # each begins in its own way


def test_an_episode_is_cut_where_it_is_said():
    env = ludus.make_env("Pendulum-v1", num_envs=2)  # its episodes have 200 steps
    policy = learned(PPO, Spec(env.observation_space, env.action_space, 2))[0]
    demonstrations = record_demonstrations(policy, env, 5, max_steps=7)
    assert demonstrations.lengths.tolist() == [7] * 5
    assert demonstrations.truncated[demonstrations.ends].all() and not demonstrations.terminated.any()
    whole = record_demonstrations(policy, env, 3)
    assert whole.lengths.tolist() == [200] * 3


def test_a_policy_with_a_memory_remembers_within_episodes_alone():
    env = JaxEnv(TMaze(length=3), 3, "TMaze")
    ppo = ludus.PPO(batch_size=96, minibatch_size=96, network=ludus.GRU(memory_size=8, hidden_sizes=(8,)))
    policy = learned(ppo, Spec(env.observation_space, env.action_space, 3))[0]
    demonstrations = record_demonstrations(policy, env, 6)
    for start, end in zip(demonstrations.starts, demonstrations.ends, strict=True):
        memory = policy.initial_memory()
        for row in range(start, end + 1):
            action, memory = policy(demonstrations.obs[row], memory)
            assert action == demonstrations.action[row]


def test_a_broken_episode_is_left_out_whole():
    lane, rows = _Lane(wanted=2, most=100), np.arange(12)
    never, whole = np.zeros(4, bool), np.ones(4, bool)
    lane.add([rows[:4]], never, whole)
    lane.add([rows[4:8]], np.array([False, True, False, True]), np.array([False, False, True, True]))  # 0 to 5 broke
    lane.add([rows[8:]], np.array([False, False, True, False]), whole)
    assert [episode[0].tolist() for episode in lane.episodes] == [[6, 7], [8, 9, 10]]
    assert lane.is_done


@pytest.mark.parametrize("change", [{"episodes": 0}, {"seed": -1}, {"random_actions": 1.5}, {"max_steps": 0}])
def test_what_makes_no_sense_is_refused(change):
    env, policy = cartpole()
    with pytest.raises(LudusError, match=next(iter(change))):
        record_demonstrations(policy, env, **change)


def test_record_from_the_command_line(run, tmp_path):
    settings = ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False)
    env = ludus.make_env("CartPole-v1", num_envs=4)
    ludus.Trainer(PPO, env, settings, run_dir=tmp_path / "cart").train(total_steps=64)
    code, out, err = run("record", "cart", "--episodes", 3, "--random-actions", 0.5, "--out", "demos.safetensors")
    assert (code, err) == (0, "") and "3 episodes" in out
    assert ludus.read_demonstrations("demos.safetensors").num_episodes == 3
    code, _, err = run("record", "cart", "--out", "demos.safetensors")
    assert code == 2 and err.count("\n") == 1 and "exists already" in err
    code, _, err = run("record", "cart", "--episodes", 0, "--out", "more.safetensors")
    assert code == 2 and "episodes=0" in err
    code, _, err = run("record", "cart", "--env", "Pendulum-v1", "--out", "more.safetensors")
    assert code == 2 and "is not the policy's" in err
