"""Metrics and rewards of an episode against hand-made cases."""

import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.envs.scenarios.driving import metrics, rewards
from ludus.envs.scenarios.driving.dynamics import Motion
from ludus.envs.scenarios.driving.rewards import Happening
from ludus.types import LudusError

NO = jnp.bool_(False)
CALM = Happening(NO, NO, NO, NO, NO, NO, NO, jnp.float32(10.0), jnp.float32(1.0), jnp.float32(0.0))


def told(*steps: Happening, expert: float = 10.0, speed: float = 10.0, rough: bool = False) -> dict[str, float]:
    tally, progress = metrics.nothing(), 0.0
    for seen in steps:
        progress += float(seen.advance)
        tally = metrics.counted(
            tally, seen, jnp.bool_(rough), jnp.float32(speed), jnp.float32(progress), jnp.float32(2)
        )
    return {name: float(value) for name, value in metrics.figures(tally, jnp.float32(expert)).items()}


@pytest.mark.requirement("S2.18")
def test_a_calm_drive_has_full_marks():
    made = told(*[CALM] * 10)
    for name in ("accuracy", "is_success", "nuplan_score", "vmax_score", "comfort", "lanes", "direction", "ttc_score"):
        assert made[name] == 1.0, name
    assert (made["progress"], made["progress_ratio"], made["log_divergence"]) == (10.0, 1.0, 2.0)


@pytest.mark.requirement("S2.18")
def test_the_two_scores_by_their_formulas():
    seen = CALM._replace(speeding=jnp.float32(1.115), astride=jnp.bool_(True), time_to_collision=jnp.float32(0.9))
    made = told(*[seen] * 40, expert=80.0, rough=True)
    ttc, progress, speed, lanes, comfort = 0.0, 0.5, 0.5, 0.5, 0.0
    assert made["astride"] == pytest.approx(4.0)
    assert made["nuplan_score"] == pytest.approx((5 * ttc + 5 * progress + 4 * speed + 2 * comfort) / 16)
    assert made["vmax_score"] == pytest.approx((5 * ttc + 5 * progress + 4 * speed + 3 * lanes + 2 * comfort) / 19)


@pytest.mark.requirement("S2.18")
@pytest.mark.parametrize(
    ("event", "zero"),
    [
        ({"overlap": True, "at_fault": True}, ("nuplan_score", "vmax_score", "accuracy", "is_success")),
        ({"overlap": True}, ("accuracy", "is_success")),
        ({"offroad": True}, ("nuplan_score", "vmax_score", "accuracy", "is_success")),
        ({"red_light": True}, ("vmax_score", "accuracy", "is_success")),
    ],
)
def test_what_spoils_which_figure(event, zero):
    bad = CALM._replace(**{name: jnp.bool_(value) for name, value in event.items()})
    made = told(bad, *[CALM] * 9)
    for name in ("nuplan_score", "vmax_score", "accuracy", "is_success"):
        assert (made[name] == 0.0) == (name in zero), name


def test_no_progress_is_no_success():
    made = told(*[CALM._replace(advance=jnp.float32(0.19))] * 10)
    assert (made["accuracy"], made["is_success"], made["nuplan_score"]) == (1.0, 0.0, 0.0)
    assert told(*[CALM._replace(advance=jnp.float32(0.3))] * 10)["nuplan_score"] > 0.5


@pytest.mark.parametrize(("steps", "lanes"), [(30, 1.0), (31, 0.5), (34, 0.5), (50, 0.5), (51, 0.0)])
def test_the_score_of_lanes_never_exceeds_one(steps, lanes):
    assert told(*[CALM._replace(astride=jnp.bool_(True))] * steps)["lanes"] == lanes


def test_driving_against_the_direction_is_counted_in_metres():
    wrong = CALM._replace(wrong_way=jnp.bool_(True))
    assert told(wrong, wrong)["direction"] == 1.0
    assert told(*[wrong] * 3)["direction"] == 0.5
    assert told(*[wrong] * 7)["direction"] == 0.0
    assert told(*[wrong] * 3)["wrong_way"] == pytest.approx(3.0)


def test_comfort_by_its_bounds():
    def ride(speeds, yaws=(0.0,) * 5) -> bool:
        past = np.zeros((5, 4), np.float32)
        past[:, 3], past[:, 2] = speeds, yaws
        return bool(metrics.is_rough(jnp.asarray(past)))

    assert not ride([10.0] * 5)
    assert not ride([10 + 0.23 * t for t in range(5)])
    assert ride([10 + 0.25 * t for t in range(5)]), "faster than 2.4 m/s^2"
    assert ride([10 - 0.41 * t for t in range(5)]), "slower than 4.05 m/s^2"
    assert ride([10.0, 10.0, 10.0, 10.2, 10.4]), "a jerk of 10 m/s^3"
    assert not ride([4.0] * 5, [0.09 * t for t in range(5)])
    assert ride([4.0] * 5, [0.1 * t for t in range(5)]), "1 rad/s"
    assert ride([8.0] * 5, [0.07 * t for t in range(5)]), "5.6 m/s^2 across"


def test_whose_fault_a_collision_is():
    size = jnp.array([[4.6, 1.9]])

    def fault(other, speed=8.0, astride=False) -> bool:
        motion = Motion(jnp.zeros(3), jnp.float32(speed))
        return bool(rewards._is_at_fault(motion, jnp.array([other]), size, jnp.bool_(astride))[0])

    assert fault([4.0, 0.0, 0.0]), "into the car in front"
    assert not fault([4.0, 0.0, 0.0], speed=0.0), "standing"
    assert not fault([-4.0, 0.0, 0.0]), "from behind"
    assert not fault([0.0, -3.0, 1.57]), "from the side"
    assert fault([0.0, 1.8, 0.0], astride=True), "beside, not within a lane"


@pytest.mark.requirement("S2.27")
def test_the_reward_is_the_weighted_sum_of_its_terms():
    seen = CALM._replace(advance=jnp.float32(0.5), overlap=jnp.bool_(True), speeding=jnp.float32(2.0))
    weights = dict.fromkeys(rewards.REWARDS, 0.0) | {"progress": 2.0, "overlap": -7.0, "speeding": -1.0, "close": 5.0}
    made = rewards.reward_of(tuple(weights.items()), seen, NO, jnp.float32(10.0))
    assert float(made) == pytest.approx(2.0 * 0.5 - 7.0 - 0.2)


@pytest.mark.requirement("S2.27")
def test_only_the_chosen_keys_end_an_episode():
    seen = CALM._replace(red_light=jnp.bool_(True))
    assert bool(rewards.ended(("run_red_light",), seen))
    assert not bool(rewards.ended(("offroad", "overlap"), seen))
    assert not bool(rewards.ended((), seen))


WRONG = {
    "reward": ({"reward": {"progres": 1.0}}, "env_options.reward: there is no progres; did you mean progress?"),
    "weight": ({"reward": {"progress": "much"}}, "env_options.reward.progress=much: must be a finite number"),
    "weights": ({"reward": 3}, "env_options.reward=3: must be weights by name"),
    "key": ({"termination_keys": ["offrod"]}, "there is no offrod; did you mean offroad?"),
    "keys": ({"termination_keys": "offroad"}, "must be a list, as in"),
    "driver": ({"driver": "me"}, "env_options.driver=me: must be one of agent, expert, idm"),
    "objects": ({"objects": 16}, "env_options.objects=16: must be an integer of at least 1 and at most 15"),
    "box": ({"road_box": [1, 2]}, "must be metres ahead, behind and aside"),
    "both": ({"others": "log", "variant": "adversarial"}, "an adversary does not follow a log"),
}


@pytest.mark.requirement("S2.27")
@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line(options, message):
    with pytest.raises(LudusError) as refused:
        ludus.make_env("driving", **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
