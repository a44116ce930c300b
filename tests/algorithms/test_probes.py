"""PPO on environments with known answers: the probe that fails names the part that is broken."""

import pytest
from probe_runs import check, train

from ludus.envs.native.probes import PROBES

pytestmark = pytest.mark.slow


@pytest.mark.requirement("S0.16")
@pytest.mark.parametrize("how", ["compiled", "host"])
@pytest.mark.parametrize("name", PROBES)
def test_the_known_answer_is_learnt(name, how):
    answer = check(name, train(name, 0, how))
    assert answer["value_error"] <= 0.02, answer
    assert answer["right"] >= 0.99, answer
