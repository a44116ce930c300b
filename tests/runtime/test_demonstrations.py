"""Demonstrations: their arrays, their file, other people's arrays, and files that are damaged or hostile."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from ludus.runtime.demonstration_file import read_demonstrations, stated_sha256, write_demonstrations
from ludus.runtime.demonstrations import Demonstrations, check_spaces, checksum, from_arrays, joined
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ludus.types import LudusError

SPACE = Dict({"arm": Tuple([Box(-1.0, 1.0, (2,)), Discrete(3, start=5)]), "eye": Box(0, 255, (4, 4), "uint8")})
ACTION = Dict({"grip": MultiDiscrete([2, 3]), "move": Box(-2.0, 2.0, (3,)), "lamps": MultiBinary(2)})


def plain(lengths=(3, 1, 2), action_space=Discrete(2), masks=False) -> Demonstrations:  # noqa: B008  frozen
    draw, n = np.random.default_rng(0), sum(lengths)
    ended = np.isin(np.arange(n), np.cumsum(lengths) - 1)
    return Demonstrations(
        Box(-1.0, 1.0, (2,)),
        action_space,
        draw.normal(size=(n, 2)),
        draw.integers(0, 2, n),
        np.arange(n),
        ended & (np.arange(n) < lengths[0]),
        ended & (np.arange(n) >= lengths[0]),
        draw.normal(size=(len(lengths), 2)),
        np.ones((n, 2), bool) if masks else None,
        "Probe-v0",
        {"by": "me"},
    )


def nested(n=4) -> Demonstrations:
    draw = np.random.default_rng(1)
    seen = [
        {"arm": (draw.normal(size=(k, 2)), draw.integers(5, 8, k)), "eye": draw.integers(0, 256, (k, 4, 4))}
        for k in (n, 1)
    ]
    action = {
        "grip": draw.integers(0, 2, (n, 2)),
        "move": draw.normal(size=(n, 3)),
        "lamps": draw.integers(0, 2, (n, 2)),
    }
    ended = np.arange(n) == n - 1
    return Demonstrations(SPACE, ACTION, seen[0], action, np.zeros(n), ended, ~ended & False, seen[1])


def rewritten(demonstrations: Demonstrations, path, header=None, arrays=None, sha256=None):
    """Write a file that says other things, and states a SHA-256 that is right all the same."""
    header = {**demonstrations.header(), **(header or {})}
    arrays = {name: x for name, x in {**demonstrations.arrays(), **(arrays or {})}.items() if x is not None}
    header = {name: x for name, x in header.items() if x is not None}
    path.write_bytes(save(arrays, {**header, "sha256": sha256 or checksum(header, arrays)}))
    return path


def test_episodes_are_told_by_their_ends():
    demonstrations = plain()
    assert demonstrations.num_episodes == 3 and len(demonstrations) == 6
    assert demonstrations.starts.tolist() == [0, 3, 4]
    assert demonstrations.lengths.tolist() == [3, 1, 2]
    assert demonstrations.returns.tolist() == [3.0, 3.0, 9.0]
    after = demonstrations.next_obs
    np.testing.assert_array_equal(after[:2], demonstrations.obs[1:3])
    np.testing.assert_array_equal(after[[2, 3, 5]], demonstrations.final_obs)


def test_episodes_can_be_chosen_and_joined():
    demonstrations = plain()
    some = demonstrations.episodes([2, 0])
    assert some.lengths.tolist() == [2, 3]
    np.testing.assert_array_equal(some.next_obs[-1], demonstrations.final_obs[0])
    again = joined([demonstrations.episodes([i]) for i in range(3)])
    assert again == demonstrations and hash(again) == hash(demonstrations)
    assert some != demonstrations


@pytest.mark.parametrize("made", [plain, nested, lambda: plain(masks=True), lambda: replace(plain(), final_obs=None)])
def test_a_file_holds_what_was_written(tmp_path, made):
    demonstrations = made()
    write_demonstrations(demonstrations, tmp_path / "demos.safetensors")
    read = read_demonstrations(tmp_path / "demos.safetensors")
    assert read == demonstrations and read.about == demonstrations.about and read.env == demonstrations.env
    for name, array in demonstrations.arrays().items():
        assert read.arrays()[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays()[name], array)
    assert stated_sha256(tmp_path / "demos.safetensors") == demonstrations.sha256


def test_a_folder_holds_whole_episodes_in_each_file(tmp_path):
    demonstrations = plain(lengths=(5, 1, 7, 2, 2))
    write_demonstrations(demonstrations, tmp_path / "demos", shard_bytes=160)
    files = sorted((tmp_path / "demos").iterdir())
    assert len(files) > 2
    assert read_demonstrations(tmp_path / "demos") == demonstrations
    before = stated_sha256(tmp_path / "demos")
    files[1].unlink()
    assert stated_sha256(tmp_path / "demos") != before


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "demos.safetensors").write_bytes(b"mine")
    with pytest.raises(LudusError, match="exists already"):
        write_demonstrations(plain(), tmp_path / "demos.safetensors")


def test_arrays_of_other_people():
    n, spaces = 6, (Box(-1.0, 1.0, (2,)), Discrete(2))
    obs, after, action = np.zeros((n, 2)), np.ones((n, 2)), np.zeros(n, int)
    made = from_arrays(*spaces, obs, action, terminated=np.arange(n) == 2, next_obs=after)
    assert made.lengths.tolist() == [3, 3]
    assert made.terminated.tolist() == [False, False, True, False, False, False]
    assert made.truncated.tolist() == [False] * 5 + [True]
    assert made.final_obs.tolist() == [[1.0, 1.0]] * 2
    bare = from_arrays(*spaces, obs, action)
    assert bare.num_episodes == 1 and bare.final_obs is None and bare.reward.tolist() == [0.0] * n
    with pytest.raises(LudusError, match="do not say what was observed after"):
        bare.next_obs  # noqa: B018


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"obs": np.zeros((6, 3))}, r"obs has shape \(6, 3\), but must have \(6, 2\)"),
        ({"obs": np.full((6, 2), np.nan)}, "obs holds a NaN"),
        ({"obs": np.full((6, 2), 1e300)}, "obs holds a NaN or an infinity"),
        ({"obs": {"a": np.zeros((6, 2))}}, "obs has shape|obs holds"),
        ({"action": np.full(6, 2)}, "action holds values that are not in Discrete"),
        ({"action": np.zeros(6)}, "action holds float64, which is not int32"),
        ({"action": np.full(6, "left")}, "which is not int32"),
        ({"reward": np.full(6, np.inf)}, "reward holds a NaN"),
        ({"reward": np.zeros(5)}, "reward has shape"),
        ({"terminated": np.zeros(6, bool), "truncated": np.zeros(6, bool)}, "the last episode has no end"),
        ({"terminated": np.zeros(5, bool)}, "boolean for each step"),
        ({"truncated": np.full(6, 2)}, "boolean for each step"),
        ({"final_obs": np.zeros((2, 2))}, "final_obs has shape"),
        ({"action_mask": np.ones((6, 3))}, "action_mask has shape"),
        ({"action_mask": np.zeros((6, 2))}, "forbids every action"),
    ],
)
def test_what_does_not_fit_is_named(change, told):
    with pytest.raises(LudusError, match=told) as caught:
        replace(plain(), **change)
    assert "\n" not in str(caught.value)


def test_no_demonstrations_are_none():
    nothing = np.zeros(0)
    with pytest.raises(LudusError, match="are empty"):
        from_arrays(Box(-1.0, 1.0, (2,)), Discrete(2), np.zeros((0, 2)), nothing.astype(int))


def test_parts_need_names_of_their_own():
    space = Dict({"a/b": Box(-1.0, 1.0, ()), "a": Dict({"b": Box(-1.0, 1.0, ())})})
    with pytest.raises(LudusError, match="no names of their own"):
        from_arrays(space, Discrete(2), {"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, np.zeros(1, int))


def test_other_spaces_are_named():
    with pytest.raises(LudusError, match="their action space is Discrete"):
        check_spaces(plain(), Box(-1.0, 1.0, (2,)), Discrete(3))
    with pytest.raises(LudusError, match="their observation space is Box"):
        joined([nested(), plain()])


def refused(path) -> str:
    with pytest.raises(LudusError) as caught:
        read_demonstrations(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_files_are_refused_in_one_line(tmp_path):
    whole = tmp_path / "whole.safetensors"
    write_demonstrations(plain(), whole)
    data, path = whole.read_bytes(), tmp_path / "damaged.safetensors"
    for cut in (0, 4, 9, 200, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        refused(path)
    for at in [*range(0, len(data), 7), len(data) - 1]:  # every array, and the header
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        refused(path)
    refused(tmp_path / "missing.safetensors")
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    assert "its header has" in refused(path)
    (tmp_path / "empty").mkdir()
    assert "holds no files" in refused(tmp_path / "empty")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"format": "ludus-policy-1"}, "its format is not"),
        ({"env": None}, "its header has"),
        ({"more": "text"}, "its header has"),
        ({"observation_space": "[" * 10_000}, "damaged"),
        ({"observation_space": json.dumps({"kind": "Box"})}, "damaged"),
        ({"observation_space": json.dumps({"kind": "__import__", "low": 0})}, "damaged"),
        ({"observation_space": json.dumps({"kind": "Box", "low": -1, "high": 1, "shape": [10**12]})}, "must have"),
        ({"observation_space": json.dumps({"kind": "Box", "low": -1, "high": 1, "shape": [-2]})}, "damaged|must have"),
        ({"observation_space": json.dumps({"kind": "Dict", "spaces": []})}, "damaged|no names"),
        ({"action_space": json.dumps({"kind": "Discrete", "n": "2"})}, "damaged"),
        ({"action_space": json.dumps({"kind": "Discrete", "n": 1})}, "not in Discrete"),
        ({"action_space": "NaN"}, "damaged"),
        ({"about": "[]"}, "names and values"),
        ({"about": '{"a": 1e999}'}, "damaged"),
    ],
)
def test_hostile_headers_are_refused_in_one_line(tmp_path, header, told):
    assert re.search(told, refused(rewritten(plain(), tmp_path / "hostile.safetensors", header)))


@pytest.mark.parametrize(
    "arrays",
    [
        {"obs": None},
        {"reward": None},
        {"more": np.zeros(6)},
        {"obs": np.zeros((6, 2), np.float64)},
        {"obs": np.full((6, 2), np.nan, np.float32)},
        {"terminated": np.full(6, 2, np.uint8)},
        {"reward": np.zeros((6, 1), np.float32)},
        {"final_obs/x": np.zeros((3, 2), np.float32)},
    ],
)
def test_hostile_arrays_are_refused_in_one_line(tmp_path, arrays):
    refused(rewritten(plain(), tmp_path / "hostile.safetensors", arrays=arrays))


def test_a_stated_sum_that_is_wrong_is_refused(tmp_path):
    assert "SHA-256" in refused(rewritten(plain(), tmp_path / "hostile.safetensors", sha256="0" * 64))
