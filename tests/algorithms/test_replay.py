"""The replay against a plain list: true successors, exact contents, even draws, no copies."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_ledger import Ledger, Stream, assert_same, check_sample, replay_for

from ludus.algorithms.replay import Replay, empty_replay, insert, sample, without
from ludus.types import Transition

SHAPES = [  # steps, environments, capacity
    (1, 1, 1),
    (3, 2, 7),
    (4, 3, 12),
    (2, 5, 23),
    (5, 1, 32),
    (3, 4, 12),
]
DRAWS = 1024  # to miss one of 32 rows is a matter of 1e-13


@partial(jax.jit, donate_argnums=0)
def _insert(replay: Replay, steps: Transition) -> Replay:
    return insert(replay, steps, steps.action)


def put(replay: Replay, steps: Transition) -> Replay:
    """Insert into a copy, by the compiled program that would take the replay over."""
    return _insert(jax.tree.map(jnp.copy, replay), jax.tree.map(jnp.asarray, steps))


draw = jax.jit(sample, static_argnums=2)


def play(shape: tuple[int, int, int], stream: Stream, rollouts: int, replay: Replay | None = None):
    """Insert rollouts one by one; yield the replay and the ledger after each."""
    num_steps, num_envs, capacity = shape
    replay, ledger = replay or replay_for(capacity, num_steps, num_envs), Ledger(capacity)
    for _ in range(rollouts):
        steps = stream.rollout(num_steps)
        replay = put(replay, steps)
        ledger.insert(steps)
        yield replay, ledger


@pytest.mark.requirement("S2.9")
@pytest.mark.requirement("S2.10")
@pytest.mark.parametrize("valid", [None, "gaps", "episodes"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_replay_holds_what_a_list_would_hold(shape, valid):
    inserted = 0
    for seed, ends in enumerate([(0.0, 0.0), (0.2, 0.0), (0.1, 0.1), (0.5, 0.5), (1.0, 0.0)]):
        stream = Stream(shape[1], seed, ends, valid)
        for i, (replay, ledger) in enumerate(play(shape, stream, 9)):
            inserted += 1
            assert int(replay.ends.size) == len(ledger.rows)
            if ledger.rows:
                drawn, _ = check_sample(draw(replay, jax.random.key(i), DRAWS), ledger)
                assert drawn == set(ledger.by_reward()), "each row can be drawn"
    assert inserted == 45


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.sampled_from(SHAPES[1:4]),
    seed=st.integers(0, 2**16),
    terminated=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    truncated=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    valid=st.sampled_from([None, "gaps", "episodes"]),
    rollouts=st.integers(1, 12),
)
def test_any_stream_gives_true_successors(shape, seed, terminated, truncated, valid, rollouts):
    *_, (replay, ledger) = play(shape, Stream(shape[1], seed, (terminated, truncated), valid), rollouts)
    if ledger.rows:
        drawn, _ = check_sample(draw(replay, jax.random.key(seed), DRAWS), ledger)
        assert drawn == set(ledger.by_reward())


@pytest.mark.requirement("S2.10")
def test_size_and_position_are_exact_though_the_capacity_is_no_multiple_of_a_rollout():
    shape = (2, 5, 23)
    for i, (replay, _) in enumerate(play(shape, Stream(5, 0, (0.1, 0.1)), 12)):
        assert int(replay.ends.size) == min(10 * (i + 1), 23)
        assert int(replay.ends.total) % replay.num_slots == 10 * (i + 1) % 33


@pytest.mark.requirement("S2.10")
def test_invalid_rows_take_no_room():
    for i, (replay, ledger) in enumerate(play((3, 4, 64), Stream(4, 0, (0.1, 0.1), "gaps"), 4)):
        assert int(replay.ends.size) == int(replay.ends.total) == len(ledger.rows) < 12 * (i + 1)


def test_a_rollout_without_a_valid_row_changes_nothing_that_can_be_drawn():
    shape = (3, 2, 7)
    *_, (replay, _) = play(shape, Stream(2, 0, (0.0, 0.0)), 3)
    steps = Stream(2, 1, (0.0, 0.0)).rollout(3)
    after = put(replay, steps._replace(valid=np.zeros((3, 2), bool)))
    assert [int(x) for x in after.ends[:3]] == [int(x) for x in replay.ends[:3]]
    one, other = (draw(x, jax.random.key(0), DRAWS) for x in (replay, after))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert not after.ends.is_open.any(), "what comes next is not the successor of what came before"


def test_an_empty_replay_gives_a_blank_sample_of_the_right_shapes():
    drawn = draw(replay_for(7, 3, 2), jax.random.key(0), 5)
    assert [x.shape for x in drawn] == [(5, 2), (5, 1), (5,), (5,), (5, 2), (5,)]


# Weights


@pytest.mark.requirement("S2.10")
@pytest.mark.parametrize("length", [8, 9, 20])
def test_no_transition_is_lost_where_episodes_last_eight_steps(length):
    num_steps, num_envs, capacity = 4, 3, 100
    replay, ledger, stream = replay_for(capacity, num_steps, num_envs), Ledger(capacity), Stream(num_envs, 0, (0, 0))
    for i in range(20):
        rows = [stream.rollout(1) for _ in range(num_steps)]
        steps = jax.tree.map(lambda *x: np.concatenate(x), *rows)
        steps.truncated[[t for t in range(num_steps) if (i * num_steps + t + 1) % length == 0]] = True
        for t in np.flatnonzero(steps.truncated[:, 0]):  # the episode after it starts anew
            after = stream._fresh(num_envs)
            if t + 1 < num_steps:
                steps.obs[t + 1] = np.stack([after, -after], axis=-1)
            else:
                stream.current = after
        replay = put(replay, steps)
        ledger.insert(steps)
        _, weightless = check_sample(draw(replay, jax.random.key(i), DRAWS), ledger)
        assert not weightless


@pytest.mark.requirement("S2.9")
def test_where_every_step_is_truncated_half_the_rows_weigh_nothing_and_the_others_are_right():
    shape = (4, 3, 96)
    *_, (replay, ledger) = play(shape, Stream(3, 0, (0.0, 1.0)), 30)
    drawn, weightless = check_sample(draw(replay, jax.random.key(0), 8 * DRAWS), ledger)
    assert len(drawn) == 96
    # Two frames for each transition, and room for nine eighths and a few.
    newest = [row.reward for row in ledger.rows][-(96 * 9 // 16) :]
    assert weightless and weightless.isdisjoint(newest)


def test_terminations_cost_no_second_frame():
    shape = (4, 3, 96)
    *_, (replay, ledger) = play(shape, Stream(3, 0, (1.0, 1.0)), 30)
    drawn, weightless = check_sample(draw(replay, jax.random.key(0), 8 * DRAWS), ledger)
    assert len(drawn) == 96 and not weightless


# Frames


@pytest.mark.requirement("S2.10")
def test_numbers_of_frames_begin_again_from_zero_unnoticed():
    shape = (3, 2, 7)
    replay = replay_for(7, 3, 2)
    for before in (1, 5, 17):
        start = jnp.int32(replay.cycle - before)
        begun = dataclasses.replace(replay, ends=replay.ends._replace(next_number=start))
        wrapped = False
        for i, (later, ledger) in enumerate(play(shape, Stream(2, before, (0.1, 0.2)), 10, begun)):
            drawn, _ = check_sample(draw(later, jax.random.key(i), DRAWS), ledger)
            assert drawn == set(ledger.by_reward())
            wrapped |= int(later.ends.next_number) < replay.cycle - before
        assert wrapped and int(later.ends.next_number) < 100


def test_the_cycle_is_a_multiple_of_the_number_of_frames_that_fits_32_bits():
    for capacity, num_envs, rollout_size in [(1, 1, 1), (7, 2, 6), (1_000_000, 16, 512), (2**27, 64, 4096)]:
        replay = jax.eval_shape(lambda c=capacity, n=num_envs, r=rollout_size: empty_replay(
            c, n, r, np.zeros(1, np.float32), np.zeros(1, np.float32)
        ))  # fmt: skip
        assert replay.cycle % replay.num_frames == 0
        assert 2 * replay.num_frames < replay.cycle <= 2**30


@pytest.mark.requirement("S2.10")
def test_images_are_stored_once_as_bytes():
    capacity, rollout_size, image = 1000, 32, np.zeros((12, 12, 3), np.uint8)
    replay = empty_replay(capacity, 4, rollout_size, image, np.zeros(2, np.float32))
    assert replay.frames.dtype == np.uint8
    extra = capacity // 8 + 2 * (rollout_size + 4)
    assert replay.frames.nbytes == (capacity + extra) * image.nbytes
    beside = sum(x.nbytes for x in jax.tree.leaves(replay.transitions))
    assert beside <= (capacity + rollout_size) * (8 + 4 + 1 + 4 + 4)


def test_observations_may_be_trees_and_keep_their_types():
    example = {"image": np.zeros((4, 4, 1), np.uint8), "lidar": np.zeros(3, np.float32), "gear": np.zeros((), np.int32)}
    replay = empty_replay(7, 2, 6, example, np.zeros(1, np.float32))
    stream, ledger = Stream(2, 3, (0.1, 0.2)), Ledger(7)

    def tree(obs):
        number = obs[..., 0]
        return {
            "image": np.broadcast_to((number % 256).astype(np.uint8)[..., None, None, None], (*number.shape, 4, 4, 1)),
            "lidar": np.stack([number, number + 0.5, -number], axis=-1),
            "gear": number.astype(np.int32),
        }

    for i in range(8):
        steps = stream.rollout(3)
        ledger.insert(steps)
        replay = put(replay, steps._replace(obs=tree(steps.obs), next_obs=tree(steps.next_obs)))
        drawn = draw(replay, jax.random.key(i), 256)
        for obs in (drawn.obs, drawn.next_obs):
            assert {name: x.dtype for name, x in obs.items()} == {name: x.dtype for name, x in example.items()}
            number = np.asarray(obs["gear"])
            assert (np.asarray(obs["image"]) == (number % 256)[:, None, None, None]).all()
            assert (np.asarray(obs["lidar"]) == np.stack([number, number + 0.5, -number], axis=-1)).all()
        numbers = np.stack([drawn.obs["gear"], -drawn.obs["gear"]], -1).astype(np.float32)
        after = np.stack([drawn.next_obs["gear"], -drawn.next_obs["gear"]], -1).astype(np.float32)
        check_sample(drawn._replace(obs=numbers, next_obs=after), ledger)


# Draws


@pytest.mark.requirement("S2.10")
@pytest.mark.parametrize("rollouts", [3, 40])
def test_every_transition_is_drawn_equally_often(rollouts):
    *_, (replay, ledger) = play((3, 4, 101), Stream(4, 0, (0.05, 0.0)), rollouts)
    n, draws = len(ledger.rows), 200_000
    assert n == min(12 * rollouts, 101)
    rewards = np.asarray(draw(replay, jax.random.key(1), draws).reward)
    _, counts = np.unique(rewards, return_counts=True)
    assert len(counts) == n
    chi_square = float(((counts - draws / n) ** 2 / (draws / n)).sum())
    assert abs(chi_square - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def test_draws_follow_their_key():
    *_, (replay, _) = play((3, 4, 101), Stream(4, 0, (0.05, 0.0)), 20)
    one, same, other = (draw(replay, jax.random.key(k), 64).reward for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# Inside compiled programs


def test_inserting_inside_a_scan_equals_inserting_one_by_one():
    stream = Stream(2, 0, (0.1, 0.2))
    rollouts = [stream.rollout(3) for _ in range(9)]
    one_by_one = replay_for(7, 3, 2)
    for steps in rollouts:
        one_by_one = put(one_by_one, steps)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *rollouts)
    scanned, _ = jax.lax.scan(lambda r, steps: (insert(r, steps, steps.action), None), replay_for(7, 3, 2), stacked)
    assert_same(one_by_one, scanned)


@pytest.mark.parametrize("valid", [None, "gaps", "episodes"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (3, 4, 12)], ids=str)
def test_a_replay_with_its_old_ends_is_the_old_replay(shape, valid):
    num_steps, num_envs, _ = shape
    for seed, ends in enumerate([(0.1, 0.0), (0.1, 0.2), (0.0, 1.0)]):
        stream, wrong = Stream(num_envs, seed, ends, valid), Stream(num_envs, seed, (0.3, 0.7), valid)
        wrong.count = 1_000_000  # its numbers would stand out
        for i, (replay, ledger) in enumerate(play(shape, stream, 7)):
            if i % 2 or not ledger.rows:
                continue
            restored = dataclasses.replace(put(replay, wrong.rollout(num_steps)), ends=replay.ends)
            assert_same(replay, restored)
            one, other = (jax.tree.map(np.asarray, draw(x, jax.random.key(i), DRAWS)) for x in (replay, restored))
            np.testing.assert_array_equal(one.weight, other.weight)
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a[one.weight > 0], b[one.weight > 0])
            check_sample(other, ledger)
            next_steps = Stream(num_envs, 99, ends, valid).rollout(num_steps)
            assert_same(put(replay, next_steps), put(restored, next_steps))


# Parts of it that were lost


def damaged(replay: Replay, slots: np.ndarray, frames: np.ndarray) -> Replay:
    """The replay in NumPy, with junk in some of its rows."""
    replay = jax.tree.map(np.array, replay)

    def spoil(rows: np.ndarray, lost: np.ndarray) -> np.ndarray:
        rows[lost] = 7e6 if rows.dtype.kind == "f" else 1
        return rows

    transitions = jax.tree.map(lambda rows: spoil(rows, slots), replay.transitions)
    return dataclasses.replace(replay, frames=spoil(replay.frames, frames), transitions=transitions)


def needed(replay: Replay, lost: np.ndarray) -> list[bool]:
    """For each live transition, oldest first, whether its observation or its successor is among lost frames."""
    ends = replay.ends
    live = [(int(ends.total) - age) % replay.num_slots for age in range(int(ends.size), 0, -1)]
    numbers = [[int(part[slot]) for part in (replay.transitions.frame, replay.transitions.next_frame)] for slot in live]
    return [any(lost[number % replay.num_frames] for number in pair) for pair in numbers]


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize("valid", [None, "gaps", "episodes"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_lost_of_a_replay_is_never_drawn_and_all_else_is(shape, valid):
    num_steps, num_envs, capacity = shape
    for seed, ends in enumerate([(0.0, 0.0), (0.1, 0.1), (0.5, 0.5)]):
        stream, chance = Stream(num_envs, seed, ends, valid), np.random.default_rng(seed)
        *_, (replay, ledger) = play(shape, stream, 3 + 3 * seed)
        _, before = check_sample(draw(replay, jax.random.key(9), DRAWS), ledger) if ledger.rows else (set(), set())
        share = chance.choice([0.1, 0.3, 1.0])
        slots, frames = (chance.random(n) < share / 2 for n in (replay.num_slots, replay.num_frames))
        total, count = int(replay.ends.total), len(ledger.rows)
        spoilt = [slots[(total - age) % replay.num_slots] for age in range(count, 0, -1)]
        lost = np.logical_or(spoilt, needed(replay, frames)).tolist() if count else []
        left = [row for row, is_lost in zip(ledger.rows, lost, strict=True) if not is_lost]
        ledger.rows = type(ledger.rows)(left, capacity)
        replay = without(damaged(replay, slots, frames), slots, frames)
        assert int(replay.ends.size) == int(replay.ends.total) == len(ledger.rows)
        for i in range(6):  # and so it goes on, around the rings
            if ledger.rows:
                drawn, weightless = check_sample(draw(replay, jax.random.key(i), DRAWS), ledger)
                assert drawn == set(ledger.by_reward())
                assert i or weightless <= before
            steps = stream.rollout(num_steps)
            replay = put(replay, steps)
            ledger.insert(steps)


def test_a_replay_that_has_lost_nothing_that_lives_draws_what_it_would_have_drawn():
    shape = (3, 4, 12)
    for rollouts in (1, 4, 9):
        *_, (replay, _) = play(shape, Stream(4, 1, (0.1, 0.1)), rollouts)
        dead = np.ones(replay.num_slots, bool)
        dead[[(int(replay.ends.total) - age) % replay.num_slots for age in range(1, int(replay.ends.size) + 1)]] = False
        same = without(jax.tree.map(np.asarray, replay), dead, np.zeros(replay.num_frames, bool))
        one, other = (draw(x, jax.random.key(0), DRAWS) for x in (replay, same))
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_inserting_into_a_large_replay_copies_nothing_of_its_size():
    shapes = jax.eval_shape(lambda: empty_replay(100_000, 4, 32, np.zeros(7, np.float32), np.zeros(3, np.float32)))
    steps = Stream(4, 0, (0.1, 0.1)).rollout(8)
    steps = steps._replace(obs=np.zeros((8, 4, 7), np.float32), next_obs=np.zeros((8, 4, 7), np.float32))
    steps = steps._replace(action=np.zeros((8, 4, 3), np.float32))
    program = _insert.lower(shapes, steps).compile()
    rings = {f"[{shapes.num_frames}", f"[{shapes.num_slots}"}
    copies = [line for line in program.as_text().splitlines() if " copy(" in line and any(r in line for r in rings)]
    assert copies == []
    assert program.memory_analysis().temp_size_in_bytes < 100_000
