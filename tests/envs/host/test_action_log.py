"""What is recorded of running episodes is all that they need, and never more than was agreed."""

import tracemalloc

import numpy as np
import pytest

import ludus
from ludus.envs.host import action_log
from ludus.envs.host.action_log import UNKNOWN, EpisodeLog, Growing, LoggedRows
from ludus.spaces import Box, Dict, Discrete, flatten
from ludus.training import state_arrays

SPACES = {
    "one": Discrete(5),
    "several": Dict({"aim": Box(-1.0, 1.0, (2, 3)), "fire": Discrete(2)}),
}


def drawn(generator, space, num_envs):
    if isinstance(space, Discrete):
        return generator.integers(space.n, size=num_envs).astype(np.int32)
    return {
        "aim": generator.normal(size=(num_envs, 2, 3)).astype(np.float32),
        "fire": generator.integers(2, size=num_envs).astype(np.int32),
    }


def played(space, steps, num_envs=3, ends=0.02, seed=0):
    """Return a log after so many steps, and each running episode's actions, noted down one by one."""
    generator, log = np.random.default_rng(seed), EpisodeLog(num_envs, space)
    log.begin(range(num_envs))
    each = [[] for _ in range(num_envs)]
    for _ in range(steps):
        action = drawn(generator, space, num_envs)
        log.add(action)
        for i in range(num_envs):
            each[i].append([leaf[i].copy() for leaf in flatten(space, action)])
        ended = generator.random(num_envs) < ends
        if ended.any():
            log.end(ended)
            each = [[] if over else rows for over, rows in zip(ended, each, strict=True)]
    return log, each


def check_same(saved, each, space):
    assert saved["lengths"].tolist() == [len(rows) for rows in each]
    for k in range(len(each[0][0]) if each[0] else 1):
        rows = [row[k] for episode in each for row in episode]
        assert np.array_equal(saved[f"actions/{k}"], np.stack(rows))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("steps", [1, 40, 500])
def test_a_snapshot_holds_the_actions_of_running_episodes_and_is_taken_up_again(name, steps, monkeypatch):
    monkeypatch.setattr(action_log, "PIECE_BYTES", 300)  # pieces of a few rows, so that there are many
    space = SPACES[name]
    log, each = played(space, steps)
    saved = log.snapshot()
    check_same(saved, each, space)
    again = EpisodeLog(3, space)
    for episode, recorded in zip(each, again.restore(saved), strict=True):
        for k, leaf in enumerate(recorded):
            assert len(leaf) == len(episode) and all(
                np.array_equal(a, b[k]) for a, b in zip(leaf, episode, strict=True)
            )
    action = drawn(np.random.default_rng(1), space, 3)
    for either in (log, again):
        either.add(action)
        either.end(np.array([False, True, False]))
    ours, theirs = log.snapshot(), again.snapshot()
    assert ours.keys() == theirs.keys() and state_arrays.differences(ours, theirs) == []


def test_of_an_episode_that_is_too_long_nothing_is_kept_and_a_word_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(action_log, "PIECE_BYTES", 300)
    monkeypatch.setattr(action_log, "MOST_BYTES", 100 * 3 * 4)
    space = Discrete(5)
    log, _ = played(space, 400, ends=0)
    held = [len(rows) for rows in log._actions]
    assert held[0] <= 25, "no more than a piece is held for episodes that cannot be played again"
    log.end(np.array([False, True, False]))
    for _ in range(60):
        action = drawn(np.random.default_rng(2), space, 3)
        log.add(action)
    saved = log.snapshot()
    assert saved["lengths"].tolist() == [UNKNOWN, 60, UNKNOWN] and len(saved["actions/0"]) == 60
    assert log.snapshot()["lengths"].tolist() == [UNKNOWN, 60, UNKNOWN]
    assert caplog.text.count("an episode has more than 100 steps") == 1
    again = EpisodeLog(3, space)
    recorded = again.restore(saved)
    assert [x is None for x in recorded] == [True, False, True]
    assert state_arrays.differences(again.snapshot(), saved) == []


def test_a_snapshot_of_long_episodes_takes_no_more_memory_than_a_few_copies():
    space, num_envs, steps = Box(-1.0, 1.0, (2,)), 16, 200_000
    log, action = EpisodeLog(num_envs, space), np.zeros((num_envs, 2), np.float32)
    log.begin(range(num_envs))
    for _ in range(steps):
        log.add(action)
    tracemalloc.start()
    try:
        saved = log.snapshot()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saved["actions/0"].shape == (steps * num_envs, 2)
    assert peak < 3 * saved["actions/0"].nbytes


def test_an_array_that_begins_anew_is_copied_whole(monkeypatch):
    monkeypatch.setattr(state_arrays, "BLOCK_BYTES", 32)

    def taken(growing, since):
        _, blocks, written = state_arrays.take({}, {"actions": growing}, since)
        return blocks["env/actions"], written

    rows = LoggedRows()
    for i in range(40):
        rows.add(np.full(2, i, np.float32))
    _, written = taken(Growing(rows, 40), {})
    rows.add(np.full(2, 40, np.float32))
    blocks, _ = taken(Growing(rows, 41), written)
    assert list(blocks.changed) == [10] and blocks.changed[10].tolist() == [[40, 40]]
    fresh = LoggedRows()
    for i in range(45):
        fresh.add(np.full(2, -i, np.float32))
    blocks, _ = taken(Growing(fresh, 45, began=41), written)
    assert sorted(blocks.changed) == list(range(12))
    whole = np.concatenate([blocks.changed[index] for index in sorted(blocks.changed)])
    assert whole[:, 0].tolist() == [-i for i in range(45)]


def stored(saved):
    return {name: x.between(0, x.count) if isinstance(x, Growing) else x for name, x in saved.items()}


def test_a_pool_lets_its_actions_go_once_they_are_too_many(monkeypatch, caplog):
    pytest.importorskip("envpool")
    from ludus.envs.adapters import envpool

    monkeypatch.setattr(envpool, "MOST_BYTES", 50 * 2 * 4)
    env, again = (ludus.make_env("envpool:CartPole-v1", 2) for _ in range(2))
    env.reset([1, 2])
    recalled = again.restore(stored(env.snapshot()))  # before the first step
    assert not recalled.is_lost.any()
    action = np.zeros(2, np.int32)
    for _ in range(50):
        outcome = env.step(action)
    recalled = again.restore(stored(env.snapshot()))
    assert np.array_equal(recalled.obs, outcome.obs) and not recalled.is_lost.any()
    assert caplog.text == ""
    env.step(action)
    env.snapshot()
    saved = env.snapshot()
    assert saved.keys() == {"seeds", "steps"} and caplog.text.count("are kept no longer") == 1
    recalled = again.restore(saved)
    assert recalled.is_lost.all()
    assert np.array_equal(env.restart(), again.restart())  # the same new seeds, and all is recorded again
    outcome = env.step(action)
    recalled = again.restore(stored(env.snapshot()))
    assert np.array_equal(recalled.obs, outcome.obs) and not recalled.is_lost.any()
    assert env.snapshot()["actions"].began == 51 == again.snapshot()["actions"].began
    for each in (env, again):
        each.close()


def test_what_a_pool_cannot_have_saved_is_refused():
    pytest.importorskip("envpool")
    env = ludus.make_env("envpool:CartPole-v1", 2)
    seeds, actions = np.zeros(2, np.int64), np.zeros((3, 2), np.int32)
    for saved in (
        {"seeds": seeds},
        {"seeds": seeds, "steps": np.int64(-1)},
        {"seeds": seeds, "steps": np.float64(5)},
        {"seeds": seeds, "steps": np.asarray(2), "actions": actions},
        {"seeds": seeds, "actions": actions[:, :1]},
        {"seeds": seeds[:1], "actions": actions},
    ):
        with pytest.raises(ludus.LudusError, match="is not for 2 of envpool:CartPole-v1"):
            env.restore({name: np.asarray(x) for name, x in saved.items()})
    env.close()
