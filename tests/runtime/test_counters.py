"""64-bit counts in two words behave as Python's integers do."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.runtime.counters import UNLIMITED, add, from_int, reached, share
from ludus.training.budget import Budget
from ludus.types import LudusError

# Random numbers hardly ever meet an edge, so edges are drawn as often as they are.
EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 - 1, 2**63, UNLIMITED]
counts = st.one_of(st.sampled_from(EDGES), st.integers(0, UNLIMITED))
steps = st.one_of(st.sampled_from([0, 1, 2**31 - 1]), st.integers(0, 2**31 - 1))
quietly = settings(deadline=None, database=None, max_examples=200, derandomize=True)

add, reached, share = jax.jit(add), jax.jit(reached), jax.jit(share)


def to_int(count) -> int:
    high, low = np.asarray(count).tolist()
    return (high << 32) | low


@quietly
@given(counts)
def test_a_count_becomes_two_words_and_back(n):
    assert to_int(from_int(n)) == n
    assert from_int(n).dtype == np.uint32


@quietly
@given(counts, steps)
def test_adding_carries_into_the_high_word(count, n):
    assert to_int(add(from_int(count), np.int32(n))) == (count + n) % 2**64


@quietly
@given(counts, counts)
def test_a_limit_is_reached_at_itself_and_beyond(count, limit):
    assert bool(reached(from_int(count), from_int(limit))) == (count >= limit)


@quietly
@given(counts, counts.filter(bool))
def test_the_share_is_the_quotient(count, limit):
    assert float(share(from_int(count), from_int(limit))) == pytest.approx(count / limit, rel=1e-6)


def test_many_small_steps_cross_the_word_exactly():
    count = from_int(2**32 - 1000)
    for _ in range(3):
        count = add(count, np.int32(512))
    assert to_int(count) == 2**32 - 1000 + 3 * 512


def test_a_budget_without_a_limit_is_never_reached():
    limits = Budget(None, None, 60.0).limits()
    assert to_int(limits.steps) == to_int(limits.episodes) == UNLIMITED
    assert not reached(from_int(10**18), limits.steps)
    assert to_int(Budget(10**12, 7, None).limits().steps) == 10**12


@pytest.mark.parametrize("budget", [(None, None, None), (0, None, None), (None, -1, None), (5, None, float("nan"))])
def test_a_budget_that_cannot_end_a_run_is_refused(budget):
    with pytest.raises(LudusError):
        Budget(*budget).limits()


def test_the_spent_share_of_a_budget_is_the_largest_of_its_shares():
    budget = Budget(1000, 10, 100.0)
    assert budget.share(500, 1, 20.0) == 0.5
    assert budget.share(100, 8, 20.0) == 0.8
    assert budget.share(100, 1, 90.0) == 0.9
    assert budget.share(9999, 1, 1.0) == 1.0
