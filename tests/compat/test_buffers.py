"""The kit's buffers: rows over timesteps, whole trajectories, estimates against plain float64 loops."""

import numpy as np
import pytest

import ludus
from ludus.compat.buffers import ROWS, Buffer, RolloutBuffer, TrajectoryBuffer


def step(t: int, terminated: bool = False, truncated: bool = False) -> dict:
    return {
        "state": np.full(3, t, np.float32),
        "action": np.full(1, 0.1 * t, np.float32),
        "reward": 1 + t,
        "next_state": np.full(3, t + 1, np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "value": 0.5 * t,
        "log_prob": -float(t),
    }


def trajectory(length: int, end: str = "terminated", start: int = 0) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer()
    for t in range(start, start + length):
        last = t == start + length - 1
        buffer.push(**step(t, terminated=last and end == "terminated", truncated=last and end == "truncated"))
    return buffer


def finished(length: int, start: int = 0, end: str = "terminated") -> TrajectoryBuffer:
    buffer = trajectory(length, end, start)
    buffer.finish(last_value=7.0)
    return buffer


@pytest.mark.requirement("S3.10")
def test_a_buffer_is_rows_over_timesteps():
    buffer = Buffer(("state", "reward"))
    for t in range(4):
        buffer.push(state=np.full(2, t), reward=float(t))
    assert len(buffer) == 4 and buffer.shape == (2, 4)
    np.testing.assert_array_equal(buffer.retrieve("reward"), [0, 1, 2, 3])
    assert buffer.retrieve("state").shape == (4, 2)
    assert list(buffer.retrieve()) == ["state", "reward"]
    other = Buffer(("state", "reward"))
    other.push(state=np.full(2, 9), reward=9.0)
    buffer.concat(other)
    np.testing.assert_array_equal(buffer.retrieve("reward"), [0, 1, 2, 3, 9])
    assert len(other) == 1, "what was added stays as it was"
    buffer.clear()
    assert len(buffer) == 0 and buffer.shape == (2, 0) and len(other) == 1


@pytest.mark.requirement("S3.10")
def test_what_a_buffer_is_given_may_change_afterwards():
    buffer, state = Buffer(("state",)), np.zeros(2)
    buffer.push(state=state)
    state[:] = 1
    np.testing.assert_array_equal(buffer.retrieve("state"), [[0, 0]])


@pytest.mark.requirement("S3.10")
def test_rows_that_are_missing_or_unknown_are_named():
    buffer = Buffer(("state", "reward"))
    with pytest.raises(ludus.LudusError, match="missing or unknown: action, reward"):
        buffer.push(state=0, action=1)
    with pytest.raises(ludus.LudusError, match="no row 'nothing'; there are state, reward"):
        buffer.retrieve("nothing")
    with pytest.raises(ludus.LudusError, match="concat: rows"):
        buffer.concat(Buffer(("state",)))


@pytest.mark.requirement("S3.11")
def test_a_trajectory_is_one_episode():
    buffer = trajectory(3, end="truncated")
    assert len(buffer) == 3
    np.testing.assert_array_equal(buffer.retrieve("done"), [False, False, True])
    np.testing.assert_array_equal(buffer.retrieve("terminated"), [False] * 3)
    with pytest.raises(ludus.LudusError, match="this trajectory is over"):
        buffer.push(**step(3))
    buffer.clear()
    assert len(buffer) == 0
    buffer.push(**step(0))


def reference(rewards, values, last_value, terminated, gamma, lam) -> list[float]:
    """Advantages in float64, from the definition: sums of discounted temporal differences."""
    values = [float(np.float32(v)) for v in values] + [0.0 if terminated else float(last_value)]
    deltas = [float(r) + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@pytest.mark.requirement("S3.11")
@pytest.mark.requirement("S3.14")
@pytest.mark.parametrize("end", ["terminated", "truncated", "max_episode_len"])
@pytest.mark.parametrize("length", [1, 5, 64, 65])
def test_estimates_equal_the_definition_and_only_a_termination_stops_the_bootstrap(end, length):
    rng = np.random.default_rng(length)
    for gamma, lam in [(0.99, 0.95), (1.0, 1.0), (0.5, 0.0)]:
        buffer, rewards, values = TrajectoryBuffer(), rng.integers(-3, 4, length), rng.normal(size=length)
        for t in range(length):
            last = t == length - 1
            given = step(t, last and end == "terminated", last and end == "truncated")
            buffer.push(**given | {"reward": int(rewards[t]), "value": values[t]})
        buffer.finish(last_value=100.0, gamma=gamma, gae_lambda=lam)
        expected = reference(rewards, values, 100.0, end == "terminated", gamma, lam)
        np.testing.assert_allclose(buffer.retrieve("advantage"), expected, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(buffer.retrieve("return"), expected + values, rtol=1e-5, atol=1e-4)
        assert buffer.retrieve("done")[-1], "a trajectory that was merely cut counts as truncated"
        assert buffer.retrieve("terminated")[-1] == (end == "terminated")


@pytest.mark.requirement("S3.11")
def test_a_trajectory_is_finished_once_and_not_before_it_began():
    with pytest.raises(ludus.LudusError, match="finish: the trajectory is empty"):
        TrajectoryBuffer().finish()
    with pytest.raises(ludus.LudusError, match="is finished already"):
        finished(3).finish()


@pytest.mark.requirement("S3.12")
def test_a_rollout_takes_whole_trajectories_until_its_threshold():
    rollout = RolloutBuffer(threshold_rollout_length=10)
    for length in (4, 5, 8):
        assert not rollout.is_full
        rollout.concat(finished(length))
    assert rollout.is_full and len(rollout) == 17, "the last trajectory is whole"
    np.testing.assert_array_equal(np.flatnonzero(rollout.retrieve("done")), [3, 8, 16])
    with pytest.raises(ludus.LudusError, match=r"the rollout is full \(17 steps\)"):
        rollout.concat(finished(1))
    rollout.clear()
    assert len(rollout) == 0 and not rollout.is_full
    with pytest.raises(ludus.LudusError, match="not finished"):
        rollout.concat(trajectory(3))
    with pytest.raises(ludus.LudusError, match="threshold_rollout_length=0"):
        RolloutBuffer(0)


def sizes_and_rewards(batches) -> tuple[list[int], list[float]]:
    batches = list(batches)
    return [len(batch["reward"]) for batch in batches], [float(r) for batch in batches for r in batch["reward"]]


@pytest.mark.requirement("S3.12")
def test_batches_are_shuffled_see_each_step_once_and_the_last_is_short():
    rollout = RolloutBuffer(10)
    rollout.concat(finished(17))
    sizes, rewards = sizes_and_rewards(rollout.batches(batch_size=5, seed=0))
    assert sizes == [5, 5, 5, 2]
    assert sorted(rewards) == list(range(1, 18)) != rewards
    assert sizes_and_rewards(rollout.batches(batch_size=5, seed=0))[1] == rewards
    assert sizes_and_rewards(rollout.batches(batch_size=5, seed=1))[1] != rewards
    assert sizes_and_rewards(rollout.batches(batch_size=17))[0] == [17]
    assert sizes_and_rewards(rollout.batches(batch_size=99))[0] == [17]
    batch = next(rollout.batches(batch_size=5))
    assert set(batch) == {*ROWS, "advantage", "return"}
    np.testing.assert_array_equal(batch["state"][:, 0] + 1, batch["reward"])


@pytest.mark.requirement("S3.12")
def test_batch_num_is_exactly_the_number_of_batches():
    rollout = RolloutBuffer(10)
    rollout.concat(finished(17))
    sizes, rewards = sizes_and_rewards(rollout.batches(batch_num=4))
    assert sizes == [5, 4, 4, 4] and sorted(rewards) == list(range(1, 18))
    for options in ({"batch_num": 0}, {"batch_num": 18}, {"batch_size": 0}):
        with pytest.raises(ludus.LudusError, match="must be from 1 to"):
            next(rollout.batches(**options))


@pytest.mark.requirement("S3.12")
def test_the_core_sees_the_same_steps_with_padding_marked():
    rollout = RolloutBuffer(10)
    rollout.concat(finished(4))
    rollout.concat(finished(7, start=4, end="truncated"))
    steps = rollout.rollout(multiple=4).steps
    assert steps.reward.shape == (20, 1) and steps.valid.sum() == 11
    assert steps.valid[:11].all(), "valid rows come first"
    np.testing.assert_array_equal(steps.reward[:11, 0], np.arange(1, 12))
    np.testing.assert_array_equal(steps.next_obs[:10, 0], steps.obs[1:11, 0])
    np.testing.assert_array_equal(np.flatnonzero(steps.terminated), [3])
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated), [10])
    assert steps.obs.dtype == steps.reward.dtype == np.float32
