"""The geometry of the simulator against shapely, on random poses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shapely
from shapely import affinity

from ludus.envs.scenarios.driving import geometry, rewards, roads, templates
from ludus.envs.scenarios.driving.traffic import SIZE

POSES = 10_000


def boxes(poses: np.ndarray, sizes: np.ndarray) -> list[shapely.Polygon]:
    made = []
    for (x, y, yaw), (length, width) in zip(poses.tolist(), sizes.tolist(), strict=True):
        box = shapely.box(-length / 2, -width / 2, length / 2, width / 2)
        made.append(affinity.translate(affinity.rotate(box, yaw, origin=(0, 0), use_radians=True), x, y))
    return made


def drawn(seed: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    poses = np.column_stack([random.uniform(-reach, reach, (POSES, 2)), random.uniform(-7, 7, POSES)])
    return poses.astype(np.float32), random.uniform([3.0, 1.5], [9.0, 2.5], (POSES, 2)).astype(np.float32)


@pytest.mark.requirement("S2.18")
def test_boxes_overlap_where_shapely_says_so():
    (one, size), (two, other) = drawn(0, 4.0), drawn(1, 4.0)
    ours = np.asarray(jax.jit(geometry.overlaps)(one, size, two, other))
    pairs = list(zip(boxes(one, size), boxes(two, other), strict=True))
    shared = np.array([a.intersection(b).area for a, b in pairs])
    apart = np.array([a.distance(b) for a, b in pairs])
    is_sure = (shared > 1e-3) | (apart > 1e-3)  # those that just touch may be rounded either way
    assert is_sure.mean() > 0.99
    np.testing.assert_array_equal(ours[is_sure], (shared > 0)[is_sure])
    assert 0.2 < ours.mean() < 0.9


def test_corners_are_shapelys():
    poses, sizes = drawn(2, 50.0)
    ours = np.asarray(jax.jit(geometry.corners)(poses, sizes))
    for mine, box in zip(ours[:300], boxes(poses[:300], sizes[:300]), strict=True):
        assert shapely.Polygon(mine).symmetric_difference(box).area < 1e-3
        assert shapely.Polygon(mine).exterior.is_ccw


@pytest.mark.requirement("S2.18")
def test_places_along_a_route_are_shapelys():
    line = np.cumsum(np.random.default_rng(3).uniform(0.2, 1.0, (40, 2)), axis=0).astype(np.float32)
    points = np.random.default_rng(4).uniform(-5, 30, (POSES, 2)).astype(np.float32)
    even, _, _ = jax.jit(geometry.resample, static_argnums=(1, 2))(line, 30, 0.8)
    step = np.linalg.norm(np.diff(np.asarray(even), axis=0), axis=1)
    assert (step <= 0.8 + 1e-4).all()
    assert (step > 0.65).all(), "chords of a line that bends"
    told = jax.jit(jax.vmap(lambda point: geometry.nearest(even, point)))(points)
    route = shapely.LineString(np.asarray(even, np.float64))
    targets = shapely.points(points.astype(np.float64))
    far = shapely.distance(route, targets)
    np.testing.assert_allclose(np.linalg.norm(told[2], axis=1), far, atol=2e-4)
    lengths = np.concatenate([[0.0], np.cumsum(step)])
    along = lengths[told[0]] + np.asarray(told[1]) * step[told[0]]
    other = shapely.line_locate_point(route, targets)
    # Where two places are as near, either may be chosen: then it is the distance that counts.
    agrees = np.abs(along - other) < 1e-2
    assert agrees.mean() > 0.995
    np.testing.assert_allclose(shapely.distance(shapely.line_interpolate_point(route, along), targets), far, atol=1e-2)


def test_the_sign_beside_a_line_is_positive_to_the_left():
    line = jnp.stack([3.0 * jnp.arange(10), jnp.zeros(10)], axis=-1)
    found = jax.vmap(lambda point: geometry.project(line, 3.0, point))(
        jnp.array([[4.0, 2.0], [4.0, -1.5], [-2.0, 0.0]])
    )
    np.testing.assert_allclose(found.along, [4.0, 4.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(found.aside, [2.0, -1.5, 2.0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.requirement("S2.18")
def test_offroad_is_where_shapely_finds_a_corner_beside_all_lanes():
    keys = jax.random.split(jax.random.key(5), 10)
    maps = jax.device_get(jax.jit(jax.vmap(lambda key: templates.drawn(key, "training")))(keys))
    random, each = np.random.default_rng(6), POSES // 10
    share, wrong = 0.0, 0
    judge = jax.jit(jax.vmap(rewards.is_offroad, in_axes=(None, 0)))
    for number in range(10):
        road = jax.tree.map(lambda x, number=number: x[number], maps)
        there = road.points[road.is_there]
        at = there.reshape(-1, 2)[random.integers(0, there.shape[0] * there.shape[1], each)]
        poses = np.column_stack([at + random.normal(0, 2.5, (each, 2)), random.uniform(-7, 7, each)]).astype(np.float32)
        ours = np.asarray(judge(road, poses))
        reach = float(road.width[0]) / 2 + roads.SHOULDER
        lanes = shapely.MultiLineString(list(there.astype(np.float64)))
        shapely.prepare(lanes)
        corners = np.asarray(geometry.corners(jnp.asarray(poses), jnp.array(SIZE)), np.float64)
        far = shapely.distance(lanes, shapely.points(corners)).max(axis=1)
        is_sure = np.abs(far - reach) > 1e-3
        wrong += int((ours != (far > reach))[is_sure].sum())
        share += ours.mean() / 10
    assert wrong == 0
    assert 0.2 < share < 0.8


def test_the_time_until_two_boxes_meet():
    size = jnp.array([4.0, 2.0])
    one, still = jnp.array([0.0, 0.0, 0.0]), jnp.zeros(2)
    behind = geometry.time_to_overlap(one, size, jnp.array([10.0, 0.0]), jnp.array([24.0, 0.0, 0.0]), size, still)
    np.testing.assert_allclose(behind, 2.0, atol=1e-6)
    beside = geometry.time_to_overlap(one, size, jnp.array([10.0, 0.0]), jnp.array([24.0, 3.0, 0.0]), size, still)
    assert beside == geometry.NEVER
    crossing = geometry.time_to_overlap(
        one, size, jnp.array([10.0, 0.0]), jnp.array([20.0, -20.0, np.pi / 2]), size, jnp.array([0.0, 10.0])
    )
    np.testing.assert_allclose(crossing, 1.7, atol=1e-5)
    inside = geometry.time_to_overlap(one, size, still, jnp.array([1.0, 0.0, 0.3]), size, still)
    assert inside == 0.0
    leaving = geometry.time_to_overlap(one, size, still, jnp.array([9.0, 0.0, 0.0]), size, jnp.array([5.0, 0.0]))
    assert leaving == geometry.NEVER
