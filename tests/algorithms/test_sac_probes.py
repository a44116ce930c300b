"""SAC on environments with known answers: the probe that fails names the part that is broken."""

import pytest
from sac_probe_runs import SAC_PROBES, check, train

pytestmark = pytest.mark.slow

# Every probe is a program of its own to the compiled collector; benchmarks/probes.py runs them all.
COMPILED = ("matched-target", "endless-chain", "finite-chain", "loud-reset")
RUNS = [*((name, "host") for name in SAC_PROBES), *((name, "compiled") for name in COMPILED)]


@pytest.mark.requirement("S0.16")
@pytest.mark.requirement("S4.10")
@pytest.mark.parametrize(("name", "how"), RUNS)
def test_the_known_answer_is_learnt_by_sac(name, how):
    answer = check(name, train(name, 0, how))
    assert answer["value_error"] <= 0.02, answer
    assert answer["action_error"] <= 0.02, answer
