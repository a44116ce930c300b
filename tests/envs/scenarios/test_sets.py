"""Sets in files: the same seed writes the same bytes, what is read is what was written, and damage is named."""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reach import FAR, NEAR, WIDE, Reach
from safetensors.numpy import load, save

import ludus
from ludus.envs.scenarios import making, shards
from ludus.envs.scenarios.dividing import divide
from ludus.envs.scenarios.held_out import Generated
from ludus.envs.scenarios.making import made_by, make_set, write_set
from ludus.envs.scenarios.shards import MANIFEST, digests_of, read_manifest, read_shard, write_manifest
from ludus.envs.scenarios.stored import opened, rows
from ludus.types import LudusError


def silent(text: str) -> None:
    pass


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(making, "MOST_IN_FILE", 8)


def made(folder: Path, training: int = 21, evaluation: int = 5, seed: int = 0, env: Reach | None = None) -> Path:
    env = env or Reach()
    counts = {"training": training, "evaluation": evaluation}
    make_set(env, made_by(env, "reach:Reach", {"details": 4}, seed), folder, counts, silent)
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.requirement("S2.5")
def test_the_same_seed_writes_the_same_bytes(tmp_path, small_files):
    first, again, other = (made(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert bytes_of(first) == bytes_of(again)
    assert bytes_of(first) != bytes_of(other)
    assert sorted(bytes_of(first)) == [
        "evaluation-00000.safetensors", MANIFEST,
        "training-00000.safetensors", "training-00001.safetensors", "training-00002.safetensors",
    ]  # fmt: skip


@pytest.mark.requirement("S2.5")
def test_a_set_holds_what_the_environment_generates(tmp_path, small_files):
    folder = made(tmp_path / "set")
    manifest, _ = read_manifest(folder)
    assert (manifest.count("training"), manifest.count("evaluation"), manifest.seed) == (21, 5, 0)
    assert manifest.names == ["near", "wide", "far"]
    assert manifest.skipped["training"] > 10
    stored = opened(folder, Reach(), "reach:Reach")
    for split, seed in (("training", 21), ("evaluation", 5)):
        whole = rows(Reach(), stored, split)
        generated = Generated(Reach(), split, 0).up_to(seed)
        for name, array in generated.items():
            np.testing.assert_array_equal(whole[name], array[:seed])
    whole = rows(Reach(), stored, "training")
    assert set(whole["template"].tolist()) == {NEAR, WIDE}
    np.testing.assert_array_equal(whole["weight"], np.where(whole["template"] == WIDE, 3.0, 1.0))
    assert set(rows(Reach(), stored)["template"].tolist()) == {FAR}
    batch = ludus.make_env(Reach, 2, scenarios=str(folder))
    assert batch.num_held_out == 5
    np.testing.assert_array_equal(batch.held_out(4, 2)["goal"], ludus.make_env(Reach).held_out(0, 5)["goal"][[4, 0]])


def test_the_digest_is_of_the_scenarios_however_they_are_spread(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "MOST_IN_FILE", 8)
    first = read_manifest(made(tmp_path / "a"))[0]
    monkeypatch.setattr(making, "MOST_IN_FILE", 20)
    second = read_manifest(made(tmp_path / "b"))[0]
    assert len(first.shards) == 4 and len(second.shards) == 3
    assert first.digests == second.digests
    parts = Generated(Reach(), "evaluation", 0).up_to(5)
    each = digests_of({name: array[:5] for name, array in parts.items()})
    assert first.digests["evaluation"] == hashlib.sha256(b"".join(each)).hexdigest()


def test_scenarios_from_elsewhere_are_written_too_and_what_cannot_be_used_is_left_out(tmp_path):
    def some(x: float, count: int = 4) -> dict[str, Any]:
        goal = np.tile(np.float32([x, 0.0]), (count, 1))
        goal[0, 1] = np.nan
        return {"goal": goal, "about": {"kind": np.zeros(count, np.int32), "details": np.zeros((count, 4), np.float32)}}

    told = made_by(Reach(), "recorded", {}, None)
    manifest = write_set(
        Reach(), told, tmp_path / "set", {"training": [some(-2.0), some(0.5)], "evaluation": [some(2.0, 2)]}
    )
    assert (manifest.count("training"), manifest.count("evaluation")) == (3, 1)
    assert manifest.skipped == {"training": 5, "evaluation": 1}
    assert read_manifest(tmp_path / "set")[0] == manifest
    with pytest.raises(LudusError, match="no scenario that can be used was given"):
        write_set(Reach(), told, tmp_path / "none", {"training": [some(0.5)]})
    assert not (tmp_path / "none").exists(), "nothing is left of what was not finished"
    with pytest.raises(LudusError, match="scenario 0 of evaluation is one of training too"):
        write_set(Reach(), told, tmp_path / "both", {"training": [some(-2.0)], "evaluation": [some(-2.0)]})
    with pytest.raises(LudusError, match="is there already"):
        made(tmp_path / "set")


@pytest.mark.requirement("S2.5")
def test_whole_templates_are_held_out_when_a_set_is_divided(tmp_path, small_files):
    folder = made(tmp_path / "set", training=40, evaluation=0)
    manifest, how = divide(folder, tmp_path / "divided", 0.2)
    assert how in ("near", "wide")
    assert manifest.templates == {"training": ("wide" if how == "near" else "near",), "evaluation": (how,)}
    stored = opened(tmp_path / "divided", Reach(), "reach:Reach")
    sides = {split: rows(Reach(), stored, split) for split in ("training", "evaluation")}
    assert manifest.count("training") + manifest.count("evaluation") == 40
    for number, split in enumerate(sides):
        assert set(sides[split]["template"].tolist()) == {number}
        kinds = set(sides[split]["scenario/about/kind"].tolist())
        assert kinds == {("near", "wide").index(manifest.templates[split][0])}
    with pytest.raises(LudusError, match="it is divided"):
        divide(tmp_path / "divided", tmp_path / "again", 0.2)
    with pytest.raises(LudusError, match="--evaluation=1: must lie between 0 and 1"):
        divide(folder, tmp_path / "again", 1.0)


def test_single_scenarios_are_held_out_where_there_is_one_template(tmp_path):
    cart = ludus.make_env("CartPole-v1", randomize={"gravity": "uniform:5:15"})
    told = made_by(cart.env, cart.id, {}, 0)
    make_set(cart.env, told, tmp_path / "set", {"training": 200}, silent)
    manifest, how = divide(tmp_path / "set", tmp_path / "a", 0.25)
    assert "single scenarios" in how
    assert 30 <= manifest.count("evaluation") <= 70
    assert divide(tmp_path / "set", tmp_path / "b", 0.25)[0].digests == manifest.digests
    assert divide(tmp_path / "set", tmp_path / "c", 0.25, seed=1)[0].digests != manifest.digests


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _escape(folder: Path) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    told["shards"][0]["split"] = "../../training"
    told.pop("sha256")
    (folder / MANIFEST).write_text(json.dumps({**told, "sha256": shards._digest(told)}))


def _first_three(folder: Path) -> None:
    arrays = load((folder / SHARD).read_bytes())
    _rewritten(folder, {key: array[:3] for key, array in arrays.items()})


def _lie(folder: Path) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**told, "seed": 3}))


def _rewritten(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Replace a file by another one that the manifest agrees with, but for what it says of its arrays."""
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    (folder / "training-00001.safetensors").write_bytes(data)
    manifest, _ = read_manifest(folder)
    changed = [
        shard._replace(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        if shard.file == "training-00001.safetensors"
        else shard
        for shard in manifest.shards
    ]
    (folder / MANIFEST).unlink()
    write_manifest(folder, manifest.__class__(**{**vars(manifest), "shards": changed}))


SHARD = "training-00001.safetensors"
DAMAGE = {
    "empty": (lambda folder: (folder / SHARD).write_bytes(b""), f"{SHARD}: is damaged (it is empty)"),
    "short": (lambda folder: os.truncate(folder / SHARD, 99), f"{SHARD}: is damaged (it has 99 bytes instead of"),
    "a bit": (lambda folder: _flip(folder / SHARD), f"{SHARD}: is damaged (its SHA-256 is not what the manifest says)"),
    "gone": (lambda folder: (folder / SHARD).unlink(), f"{SHARD}: cannot be read (No such file"),
    "a link": (lambda folder: _link(folder / SHARD), f"{SHARD}: cannot be read (it is a link)"),
    "other arrays": (lambda folder: _rewritten(folder, {"weight": np.zeros(8)}), f"{SHARD}: is damaged"),
    "another count": (_first_three, "(scenario/about/details is float32[3, 4], not 8 of float32[4])"),
    "a figure": (_lie, "is damaged, or no manifest of scenarios (its SHA-256 is not what it says)"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "is no set of scenarios (manifest.json: No such file"),
    "nested": (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), "is damaged, or no manifest of scenarios"),
    "escape": (_escape, "manifest.json: is damaged, or no manifest of scenarios (an entry of a file)"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_named_in_one_line(tmp_path, small_files, damage, message):
    folder = made(tmp_path / "set")
    damage(folder)
    rows.cache_clear()  # a set that was read whole is not read again
    with pytest.raises(LudusError) as refused:
        rows(Reach(), opened(folder, Reach(), "reach:Reach"), "training")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.requirement("S2.5")
def test_scenarios_that_cannot_be_used_are_skipped_and_counted(tmp_path, caplog):
    folder = made(tmp_path / "set", training=10, evaluation=6)
    manifest, _ = read_manifest(folder)
    for shard in manifest.shards:
        arrays = read_shard(folder, manifest, shard)
        arrays["scenario/goal"][2] = 0.0  # too near
        arrays["scenario/about/details"][4, 1] = np.nan
        (folder / shard.file).unlink()
        changed = making.write_shard(folder, shard.split, shard.number, arrays)
        others = [changed if one.file == shard.file else one for one in manifest.shards]
        manifest = manifest.__class__(**{**vars(manifest), "shards": others})
    (folder / MANIFEST).unlink()
    write_manifest(folder, manifest)
    batch = ludus.make_env(Reach, 3, scenarios=str(folder))
    with caplog.at_level(logging.WARNING):
        assert batch.num_held_out == 4
        supply = batch.supply(0)
        supply.first()
    assert (
        "evaluation-00000.safetensors: 2 of 6 scenarios cannot be used and are skipped, number 2 first" in caplog.text
    )
    assert "training-00000.safetensors: 2 of 10 scenarios cannot be used and are skipped, number 2 first" in caplog.text
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(supply.data.weight) == 0), [2, 4])
    assert np.isfinite(np.asarray(supply.data.scenarios["about"]["details"])).all()
    kept = batch.held_out(0, 4)["goal"]
    np.testing.assert_array_equal(kept, ludus.make_env(Reach).held_out(0, 6)["goal"][[0, 1, 3, 5]])


class FarReach(Reach):
    """A task of which some goals are too near."""

    def defects(self, scenario):
        """Say so."""
        return {"with a goal that is near": scenario["goal"][1] < 0.7, "of no kind": np.bool_(False)}


@pytest.mark.requirement("S2.5")
def test_defects_are_named_and_counted(tmp_path, caplog):
    folder = made(tmp_path / "set", training=10, evaluation=6)
    scenarios = ludus.make_env(Reach).held_out(0, 6)
    bad = np.asarray(scenarios["goal"])[:, 1] < 0.7
    assert 0 < bad.sum() < 6
    batch = ludus.make_env(FarReach, 3, scenarios=str(folder))
    with caplog.at_level(logging.WARNING):
        assert batch.num_held_out == 6 - bad.sum()
    told = f"{bad.sum()} of 6 scenarios cannot be used and are skipped, number {np.flatnonzero(bad)[0]} first"
    assert f"{told} ({bad.sum()} with a goal that is near)" in caplog.text
    env = FarReach()
    written = write_set(env, made_by(env, "reach", {}, None), tmp_path / "new", {"evaluation": [scenarios]})
    assert (written.skipped["evaluation"], written.count("evaluation")) == (bad.sum(), 6 - bad.sum())


def test_a_set_for_another_environment_or_other_options_is_refused(tmp_path):
    folder = str(made(tmp_path / "set", evaluation=0))
    with pytest.raises(LudusError, match=r"was made for other options than object:Reach has: about/details is float32"):
        ludus.make_env(Reach, 1, scenarios=folder, details=7)
    with pytest.raises(LudusError, match=r"was made for reach:Reach, not for jax:CartPole-v1: it has besides about"):
        ludus.make_env("CartPole-v1", 1, scenarios=folder, randomize={"gravity": "uniform:5:15"})
    with pytest.raises(LudusError, match=r"jax:CartPole-v1 draws no scenarios; give randomize a range"):
        ludus.make_env("CartPole-v1", 1, scenarios=folder)
    with pytest.raises(LudusError, match=r"set: has no scenarios for evaluation; ludus scenarios make and split"):
        _ = ludus.make_env(Reach, 1, scenarios=folder).num_held_out
    with pytest.raises(LudusError, match=r"nowhere: is no set of scenarios"):
        ludus.make_env(Reach, 1, scenarios=str(tmp_path / "nowhere"))
    only = str(made(tmp_path / "only", training=0))
    with pytest.raises(LudusError, match=r"only: has no scenarios for training"):
        ludus.make_env(Reach, 1, scenarios=only)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario_sampling": "hard"}, "scenario_sampling=hard: must be one of uniform, weight, difficulty"),
        ({"scenario_buffer": 0}, "scenario_buffer=0: must be an integer of at least 1"),
        ({"scenario_refresh": 2.5}, "scenario_refresh=2.5: must be an integer of at least 1"),
    ],
)
def test_options_of_sets_are_checked(tmp_path, options, message):
    folder = str(made(tmp_path / "set"))
    with pytest.raises(LudusError, match=message):
        ludus.make_env(Reach, 1, scenarios=folder, **options)
    name = next(iter(options))
    with pytest.raises(LudusError, match=f"env_options.{name}: is about a stored set; give its folder"):
        ludus.make_env(Reach, 1, **options)
