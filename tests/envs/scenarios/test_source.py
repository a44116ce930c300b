"""How training draws from a stored set, and how its files are exchanged."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import WIDE, Reach

import ludus
from ludus.envs.batch import EpisodeSoFar, JaxEnv, Placed
from ludus.envs.scenarios import making
from ludus.envs.scenarios.making import made_by, make_set
from ludus.envs.scenarios.source import LEAST_WEIGHT, RATE
from ludus.envs.scenarios.stored import rows
from ludus.types import Course, LudusError

COUNT = 45


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """45 scenarios for training in six files, the last of which holds five."""
    path = tmp_path_factory.mktemp("sets") / "reach"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(making, "MOST_IN_FILE", 8)
        make_set(
            Reach(), made_by(Reach(), "reach", {}, 0), path, {"training": COUNT, "evaluation": 9}, lambda text: None
        )
    return str(path)


def started(folder: str, seed: int = 0, **options: Any) -> tuple[JaxEnv, Any, Any]:
    batch = ludus.make_env(Reach, 2000, scenarios=folder, **options)
    supply = batch.supply(seed)
    return batch, supply, supply.first()


def drawn(batch: JaxEnv, supply: Any, starts: Any, seed: int = 0) -> Placed:
    """What 2,000 starts were drawn from."""
    keys = jax.random.split(jax.random.key(seed), batch.num_envs)
    return jax.device_get(jax.jit(batch.reset)(keys, batch.chances(Course({}, supply.data, starts))).env)


@pytest.mark.requirement("S2.5", "S2.8")
def test_every_scenario_of_a_set_is_drawn_and_no_other(folder):
    batch, supply, starts = started(folder)
    placed = drawn(batch, supply, starts)
    goals = rows(Reach(), batch.stored, "training")["scenario/goal"]
    assert set(placed.scenario.tolist()) == set(range(COUNT))
    np.testing.assert_array_equal(placed.state["goal"], goals[placed.scenario])
    counts = np.bincount(placed.scenario)
    assert counts.min() > 15 and counts.max() < 90  # 44 on average
    np.testing.assert_array_equal(drawn(batch, supply, starts).scenario, placed.scenario)
    assert (drawn(batch, supply, starts, seed=1).scenario != placed.scenario).any()
    assert not batch.makes_starts_ahead
    assert (supply.until_next(3), supply.exchanged(starts, 100)) == (None, None)


def test_by_weight_scenarios_come_as_often_as_they_weigh(folder):
    batch, supply, starts = started(folder, scenario_sampling="weight")
    kinds = rows(Reach(), batch.stored, "training")["template"]
    counts = np.bincount(drawn(batch, supply, starts).scenario, minlength=COUNT)
    ratio = counts[kinds == WIDE].mean() / counts[kinds != WIDE].mean()
    assert 2.5 < ratio < 3.5


def settled(batch: JaxEnv, starts: Any, scenario: Any, ended: Any, succeeded: Any) -> Any:
    nothing = jnp.zeros(np.shape(ended))
    episode = EpisodeSoFar(nothing, nothing, {}, {"is_success": jnp.asarray(succeeded)}, jnp.asarray(scenario))
    return batch.settle(starts, jnp.asarray(ended), episode)


@pytest.mark.requirement("S2.5")
def test_by_difficulty_scenarios_that_fail_come_back_more_often(folder):
    batch, supply, starts = started(folder, scenario_sampling="difficulty")
    np.testing.assert_array_equal(starts.failure, np.ones(48))
    numbers = np.arange(COUNT)
    for _ in range(20):  # all but the first five succeed
        ended = np.ones((1, COUNT), bool)
        starts, figures = settled(batch, starts, numbers[None], ended, np.float32(numbers >= 5)[None])
    np.testing.assert_allclose(starts.failure[:5], 1.0)
    np.testing.assert_allclose(starts.failure[5:COUNT], (1 - RATE) ** 20, rtol=1e-4)
    assert float(figures["scenarios/failure"]) == pytest.approx(float(np.mean(starts.failure[:COUNT])), rel=1e-5)
    counts = np.bincount(drawn(batch, supply, starts).scenario, minlength=COUNT)
    assert counts.min() > 0, "nothing is forgotten"
    ratio = counts[:5].mean() / counts[5:].mean()
    assert 0.7 / LEAST_WEIGHT < ratio < 1.3 / LEAST_WEIGHT


def test_an_estimate_follows_the_episodes_that_ended_and_no_others(folder):
    batch, _, starts = started(folder, scenario_sampling="difficulty")
    scenario = np.array([[3, 3, 7], [3, 7, 8]])
    ended, succeeded = np.array([[1, 1, 0], [1, 1, 0]], bool), np.float32([[1, 0, 1], [1, 0, 1]])
    after = settled(batch, starts, scenario, ended, succeeded)[0].failure
    third = 1 / 3 + (1 - RATE) ** 3 * (1 - 1 / 3)
    np.testing.assert_allclose(after[3], third, rtol=1e-5)
    np.testing.assert_allclose(np.delete(after, 3), 1.0)
    uniform, _, plain = started(folder)
    assert settled(uniform, plain, scenario, ended, succeeded) == (plain, {})


def test_without_is_success_an_episode_fails_below_the_return_that_counts_as_solved(folder):
    batch = ludus.make_env(Reach, 2, scenarios=folder, scenario_sampling="difficulty", says_success=False)
    assert batch.source.threshold == -10.0
    starts = batch.supply(0).first()
    episode = EpisodeSoFar(jnp.float32([[-5.0, -15.0]]), jnp.int32([[1, 1]]), {}, {}, jnp.int32([[0, 1]]))
    after = batch.settle(starts, jnp.bool_([[True, True]]), episode)[0].failure
    np.testing.assert_allclose(after[:2], [1 - RATE, 1.0])
    silent = type("Silent", (Reach,), {"return_threshold": None})
    with pytest.raises(LudusError, match="does not say when an episode fails"):
        ludus.make_env(silent, 2, scenarios=folder, scenario_sampling="difficulty", says_success=False)


@pytest.mark.requirement("S2.5")
def test_files_are_exchanged_at_fixed_iterations_and_all_come_in_turn(folder):
    batch, supply, starts = started(folder, scenario_buffer=10, scenario_refresh=5)
    assert batch.source.num_held == 2
    assert [supply.until_next(n) for n in (0, 1, 4, 5, 7)] == [5, 4, 1, 5, 3]
    seen = [starts.held.tolist()]
    for iteration in range(1, 30):
        new = supply.exchanged(starts, iteration)
        assert (new is not None) == (iteration % 5 == 0)
        if new is not None:
            assert new.held.tolist() == starts.next.tolist(), "what comes next was settled one exchange before"
            starts = new
            seen.append(starts.held.tolist())
            shown = drawn(batch, supply, starts)
            files = set((shown.scenario // 8).tolist())
            assert files == set(starts.held.tolist())
            assert shown.scenario.max() < COUNT, "a file that is shorter has no more than it has"
            goals = rows(Reach(), batch.stored, "training")["scenario/goal"]
            np.testing.assert_array_equal(shown.state["goal"], goals[shown.scenario])
    for turn in (seen[:3], seen[3:6]):
        assert sorted(np.ravel(turn).tolist()) == list(range(6)), "pass after pass"
    assert seen[:3] != seen[3:6]
    assert started(folder, scenario_buffer=10, scenario_refresh=5)[2].held.tolist() == seen[0]
    others = [started(folder, seed=seed, scenario_buffer=10)[2].held.tolist() for seed in range(1, 9)]
    assert any(other != seen[0] for other in others)


def test_by_difficulty_files_with_what_fails_come_back_more_often(folder):
    _, supply, starts = started(folder, scenario_sampling="difficulty", scenario_buffer=8)
    failure = np.zeros(48, np.float32)
    failure[:8] = 1.0
    source, words = supply.source, np.asarray(starts.words)
    counts = np.bincount([source.chosen(words, number, failure)[0] for number in range(600)], minlength=6)
    assert counts.argmax() == 0 and counts[0] > 5 * counts[1:].mean()
    assert counts.min() > 0


@pytest.mark.requirement("S2.21")
def test_a_supply_goes_on_from_what_a_checkpoint_holds(folder):
    batch, supply, starts = started(folder, scenario_buffer=10, scenario_refresh=5)
    for iteration in (5, 10, 15):
        starts = supply.exchanged(starts, iteration)
    saved = jax.tree.map(np.array, starts)
    other = batch.supply(0)
    other.first()
    other.take_up(saved)
    jax.tree.map(np.testing.assert_array_equal, other.data, supply.data)
    jax.tree.map(np.testing.assert_array_equal, other.exchanged(saved, 20), supply.exchanged(starts, 20))
    jax.tree.map(np.testing.assert_array_equal, other.data, supply.data)
    with pytest.raises(LudusError, match="is not the set of scenarios that the run was begun with"):
        other.take_up(saved._replace(identity=saved.identity + 1))


def test_a_file_that_is_damaged_is_named_when_it_is_read(folder, tmp_path):
    path = Path(folder).rename(tmp_path / "moved")
    try:
        batch = ludus.make_env(Reach, 2, scenarios=str(path), scenario_buffer=8)
        supply = batch.supply(0)
        starts = supply.first()
        coming = path / batch.stored.manifest.of("training")[int(starts.next[0])].file
        data = coming.read_bytes()
        supply._coming[1].result()  # it was read while it was whole
        again = batch.supply(0)
        coming.write_bytes(data[:-1] + b"x")
        with pytest.raises(LudusError, match=f"{coming.name}: is damaged"):
            again.exchanged(again.first(), 50)
        coming.write_bytes(data)
    finally:
        path.rename(folder)
