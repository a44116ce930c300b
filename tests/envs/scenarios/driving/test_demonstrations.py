"""Demonstrations of drivers by rule."""

import numpy as np
import pytest

from ludus.envs.scenarios.driving.demonstrations import demonstrated
from ludus.envs.scenarios.driving.environment import Driving
from ludus.types import LudusError

pytestmark = pytest.mark.slow


@pytest.mark.requirement("S2.24", "S2.28")
def test_an_expert_demonstrates_whole_episodes():
    made = demonstrated(Driving(), "expert", 5, seed=3)
    assert made.num_episodes == 5 and made.lengths.tolist() == [80] * 5
    assert not made.terminated.any() and made.truncated.sum() == 5
    assert (made.returns > 1.0).all()
    speed, later = made.obs[:, 0] * 10, made.next_obs[:, 0] * 10
    np.testing.assert_allclose(later, np.maximum(speed + 0.6 * made.action[:, 0], 0.0), atol=1e-3)
    assert np.abs(made.action).max() <= 1.0


def test_an_agent_has_no_rule_to_demonstrate():
    with pytest.raises(LudusError, match="--driver=agent: has no rule"):
        demonstrated(Driving(), "agent", 5)
