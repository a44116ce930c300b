"""A damaged piece of a replay, or of recorded actions: it is said what it costs; with --fallback the rest goes on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged_runs import flip, refused, resumed
from resume_runs import iterations, run

import ludus
from ludus.runs.checkpoint import format
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training import state_arrays
from ludus.training.past_policies import policy_at
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S4.16")]


@pytest.fixture(scope="module")
def in_pieces():
    """Small arrays are written in pieces too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "BLOCK_BYTES", 256)
        patch.setattr(state_arrays, "BLOCK_BYTES", 256)
        patch.setattr(state_arrays, "LONG_BYTES", 256)
        yield


@pytest.fixture(scope="module")
def sac(tmp_path_factory, in_pieces) -> Path:
    """A run whose ring of transitions has gone round: 288 were stored, 150 are kept."""
    folder = tmp_path_factory.mktemp("runs") / "sac"
    run("sac jax", folder, 9)
    return folder


def pieces(folder: Path, array: str) -> list[Path]:
    checkpoints = Checkpoints(folder)
    names = checkpoints.open(checkpoints.latest()).blocks[array][3]
    return [folder / "checkpoints" / "blocks" / name for name in names]


def transitions(state: dict[str, np.ndarray]) -> list[tuple]:
    """The live transitions of a replay, oldest first, each with what is observed before and after it."""
    part = {name.removeprefix("learner/replay/"): array for name, array in state.items() if "/replay/" in name}
    slots, rows = len(part["transitions/reward"]), len(part["frames"])
    found = []
    for age in range(int(part["ends/size"]), 0, -1):
        slot = (int(part["ends/total"]) - age) % slots
        numbers = [int(part[f"transitions/{name}"][slot]) % rows for name in ("frame", "next_frame")]
        own = [part[f"transitions/{name}"][slot].tobytes() for name in ("action", "reward", "terminated")]
        found.append((*own, *(part["frames"][number].tobytes() for number in numbers)))
    return found


PIECES = {
    "learner/replay/frames": 1,
    "learner/replay/transitions/action": 1,
    "learner/replay/transitions/reward": 0,
    "learner/replay/transitions/frame": 2,
}
DAMAGES = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize(
    ("array", "index", "damage"),
    [(*piece, "flipped") for piece in PIECES.items()] + [("learner/replay/frames", 1, damage) for damage in DAMAGES],
)
def test_a_damaged_piece_costs_its_transitions_and_no_checkpoint(sac, tmp_path, array, index, damage, capsys):
    folder = shutil.copytree(sac, tmp_path / "run")
    all_of_them = transitions(state_of(folder))
    policy = policy_at(folder, "latest")
    piece = pieces(folder, array)[index]
    DAMAGES.get(damage, flip)(piece)
    said = refused(folder, capsys)
    assert f"{piece}: " in said and f"it is piece {index + 1} of {len(pieces(sac, array))} of {array}" in said
    lost = int(said.partition("; this costs ")[2].partition(" of 150 transitions of the replay; ")[0])
    assert 0 < lost < 75
    assert "ludus resume --fallback goes on without them, not exactly" in said
    obs = np.zeros((1, 3), np.float32)
    assert policy_at(folder, "latest")(obs) == policy(obs)  # which needs no replay

    made = ludus.Trainer.resume(folder, fallback=True, total_steps=iterations("sac jax", 12), verbose=False)
    made.final_episodes = 0
    left = transitions(state_arrays.take(made.state, {}, {})[0] | joined(made.state))
    assert len(left) == 150 - lost
    remaining = iter(all_of_them)
    assert all(one in remaining for one in left)  # whole, in their order, and none of those that are lost
    made.train()
    (entry,) = read_identity(folder)["resumed"]
    assert entry == {"steps": 288, "level": "mended", "lost": [f"{lost} of 150 transitions of the replay"]}
    log = (folder / "log.txt").read_text()
    assert "resumed at 288 steps · mended: a part of the state is lost, so numbers will differ" in log
    assert f"this costs {lost} of 150 transitions of the replay" in log
    assert_exact_again(folder, tmp_path)


def joined(state) -> dict[str, np.ndarray]:
    """The long arrays of a state, whole."""
    return {name: np.concatenate(list(x.changed.values())) for name, x in state_arrays.take(state, {}, {})[1].items()}


def assert_exact_again(folder: Path, scratch: Path) -> None:
    """The checkpoints that were written after the mending are whole, and a run goes on from them bit by bit."""
    steps = [step for step in Checkpoints(folder).steps() if step > 288]
    for step in steps:
        Checkpoints(folder).open(step).verify()
    copy = shutil.copytree(folder, scratch / "again")
    resumed(copy, None, steps[0])
    assert read_identity(copy)["resumed"][-1] == {"steps": steps[0], "level": "exact"}
    assert differences(state_of(copy), state_of(folder)) == []


def test_a_piece_with_nothing_in_it_that_is_needed_costs_nothing(sac, tmp_path, capsys):
    folder = shutil.copytree(sac, tmp_path / "run")
    pieces(folder, "learner/replay/frames")[3].unlink()  # observations that the ring has gone past
    said = refused(folder, capsys)
    assert said.endswith("this costs 0 of 150 transitions of the replay; ludus resume --fallback goes on without them")
    resumed(folder, 12, case="sac jax", fallback=True)
    assert read_identity(folder)["resumed"] == [
        {"steps": 288, "level": "exact", "lost": ["0 of 150 transitions of the replay"]}
    ]
    run("sac jax", tmp_path / "straight", 12)
    assert journal_of(folder) == journal_of(tmp_path / "straight")
    states = [state_of(run) for run in (folder, tmp_path / "straight")]
    unlike = {name for name in differences(*states) if "/replay/" not in name}
    assert unlike == set() and transitions(states[0]) == transitions(states[1])


def test_the_line_names_the_checkpoint_from_which_it_goes_on_exactly(sac, tmp_path, capsys):
    folder = shutil.copytree(sac, tmp_path / "run")
    newest = set(pieces(folder, "learner/replay/frames"))
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()
    known = {path.name: path for path in newest}
    earlier = {name for step in steps[:-1] for name in checkpoints.open(step).blocks["learner/replay/frames"][3]}
    fresh = next(known[name] for name in known.keys() - earlier)
    fresh.unlink()
    assert f"not exactly; --from {steps[-2]} goes on exactly, from there" in refused(folder, capsys)
    resumed(folder, None, steps[-2], case="sac jax")
    assert read_identity(folder)["resumed"] == [{"steps": steps[-2], "level": "exact"}]
    assert differences(state_of(folder), state_of(sac)) == []


def test_where_all_pieces_are_gone_the_replay_begins_empty_and_the_rest_goes_on(sac, tmp_path, capsys):
    folder = shutil.copytree(sac, tmp_path / "run")
    count = len(list((folder / "checkpoints" / "blocks").iterdir()))
    shutil.rmtree(folder / "checkpoints" / "blocks")
    said = refused(folder, capsys)
    assert count > 10 and "more are damaged); this costs 150 of 150 transitions of the replay; " in said
    assert said.endswith("ludus resume --fallback goes on without them, not exactly")
    saved = {name: array for name, array in state_of(sac).items() if "/replay/" not in name}
    made = ludus.Trainer.resume(folder, fallback=True, total_steps=iterations("sac jax", 12), verbose=False)
    made.final_episodes = 0
    arrays = state_arrays.take(made.state, {}, {})[0]
    assert int(arrays["learner/replay/ends/size"]) == 0
    assert [name for name, array in saved.items() if name in arrays and not (arrays[name] == array).all()] == []
    made.train()
    sizes = [row["replay_size"] for row in read_journal(folder) if row["kind"] == "train"]
    assert sizes[-4:] == [150, 32, 64, 96]
    assert_exact_again(folder, tmp_path)


@pytest.mark.parametrize("case", ["ppo envpool"])
def test_recorded_actions_that_are_damaged_cost_the_running_episodes(case, tmp_path, in_pieces, capsys):
    folder = tmp_path / "run"
    run(case, folder, 4, eval_frequency=0)
    flip(pieces(folder, "env/actions")[0])
    said = refused(folder, capsys)
    assert "of env/actions; this costs the recorded actions of the environments, which start new episodes; " in said
    resumed(folder, 6, case=case, fallback=True, eval_frequency=0)
    (entry,) = read_identity(folder)["resumed"]
    assert (entry["steps"], entry["level"]) == (256, "episode")
    assert entry["lost"] == ["the recorded actions of the environments, which start new episodes"]
    resumed(folder, 8, case=case)  # what began anew is recorded again
    assert [entry["level"] for entry in read_identity(folder)["resumed"]] == ["episode", "exact"]


def test_a_piece_of_something_that_cannot_be_left_out_is_refused(sac, tmp_path):
    """No checkpoint of ours has parameters in pieces; a forged one may."""
    folder = shutil.copytree(sac, tmp_path / "run")
    path = folder / "checkpoints" / "288" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    name, (dtype, shape) = next(
        item for item in manifest["arrays"].items() if item[0].startswith("learner/learner/") and item[1][1]
    )
    state = state_of(sac)
    del manifest["arrays"][name], state[name]
    manifest["blocks"][name] = {"shape": shape, "dtype": dtype, "rows": 10**6, "sha256": ["0" * 64]}
    short = {name: array for name, array in state.items() if name in manifest["arrays"]}
    data = format.as_safetensors(short)
    (path.parent / "state.safetensors").write_bytes(data)
    manifest["files"]["state.safetensors"] = {"size": len(data), "sha256": format.sha256(data)}
    path.write_bytes(format.signed(manifest))
    for fallback in (False, True):
        with pytest.raises(ludus.LudusError, match=rf"piece 1 of 1 of {name}"):
            resumed(folder, fallback=fallback)
    with pytest.raises(ludus.LudusError, match=rf"piece 1 of 1 of {name}"):
        policy_at(folder, "latest")
