"""Nothing that is loaded can execute anything, and what a run writes is for the user alone."""

import ast
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import ROOT, SUPPORT
from resume_runs import iterations, run

import ludus
from ludus.cli.main import main
from ludus.runs.folder import RunFolder
from ludus.types import LudusError

pytestmark = pytest.mark.slow

SOURCE = Path(ludus.__file__).parent
BETWEEN_OUR_OWN = ("envs/workers/messages.py", "envs/workers/pool.py", "envs/workers/worker.py")
"""A process and its own workers speak in pickles over a private pipe; nothing that was stored is read there."""
FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("os", "system"),
    ("os", "popen"),
}


def sins(path: Path) -> list[str]:
    """Return what in a file could execute what it loads."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found += [f"import {name.name}" for name in names if name.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=module) if module and module.split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"from {module}")
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attr)):
                if (owner, attr) in FORBIDDEN_ATTRIBUTES:
                    found.append(f"{owner}.{attr}")
                if (owner, attr) == ("torch", "load") and not _says(node, "weights_only", True):
                    found.append("torch.load without weights_only")
        if isinstance(node, ast.Call) and (_says(node, "shell", True) or _says(node, "allow_pickle", True)):
            found.append("shell or allow_pickle")
        if isinstance(node, ast.Name | ast.Attribute) and "Pickler" in (
            getattr(node, "id", "") + getattr(node, "attr", "")
        ):
            found.append("pickler")
    return found


def _says(call: ast.Call, name: str, value: object) -> bool:
    return any(
        word.arg == name and isinstance(word.value, ast.Constant) and word.value.value == value
        for word in call.keywords
    )


@pytest.mark.requirement("S2.20")
def test_no_file_of_the_source_could_execute_what_it_loads():
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 50
    found = {str(path.relative_to(SOURCE)): sins(path) for path in paths}
    assert {name: sorted(set(what)) for name, what in found.items() if what and name not in BETWEEN_OUR_OWN} == {}
    for name in BETWEEN_OUR_OWN:
        assert set(found[name]) <= {"pickler", "import pickle", "from pickle"}, found[name]


def test_the_scan_finds_what_it_looks_for(tmp_path):
    texts = [
        "import pickle", "from pickle import loads", "eval('1')", "exec('1')", "import yaml; yaml.load('')",
        "import numpy as np; np.load('x', allow_pickle=True)", "import torch; torch.load('x')",
        "import subprocess; subprocess.run('x', shell=True)", "import os; os.system('x')",
    ]  # fmt: skip
    for text in texts:
        (tmp_path / "bad.py").write_text(text)
        assert sins(tmp_path / "bad.py"), text


WATCHED = """
import sys
import tomllib
sys.path.insert(0, {tests!r})
import ludus, resume_runs  # what is imported may execute what it likes
import ludus.training.past_policies, ludus.algorithms.critic, ludus.cli.main, ludus.envs.registry
import safetensors.numpy, yaml, ml_dtypes
from ludus.training.past_policies import policy_at
from ludus.training.restore import CheckpointSource
from ludus.training.resume import rebuilt
from ludus.training.state_arrays import shapes
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.training.trainer import Trainer

run = {run!r}
trainer, _ = rebuilt(Trainer, __import__("pathlib").Path(run), read_config(run), verbose=False)
expected = shapes(trainer.state)
ludus.load_policy(run), ludus.algorithms.critic.load_critic(run)  # compiled once, before anybody watches
seen, ours = [], []

def watch(event, arguments):
    if not ours:
        return
    if event.startswith(("pickle.", "marshal.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork")):
        seen.append((event, str(arguments)[:200]))
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append((event, str(arguments)[:200]))

sys.addaudithook(watch)
ours.append(True)
for _ in range(20):
    read_config(run), read_identity(run), read_journal(run)
    CheckpointSource(__import__("pathlib").Path(run), "latest", True, print).arrays(expected, trainer.env.num_envs)
    ludus.load_policy(run)
    ludus.algorithms.critic.load_critic(run)
ours.clear()
print(seen)
"""


def test_loading_checkpoints_policies_critics_and_configurations_executes_and_writes_nothing(tmp_path):
    run("ppo gym", tmp_path / "run", 2)
    code = WATCHED.format(tests=str(SUPPORT), run=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_what_a_run_writes_is_for_the_user_alone(tmp_path):
    run("sac jax", tmp_path / "above" / "run", 4)
    loose = {
        str(path.relative_to(tmp_path)): oct(mode)
        for path in (tmp_path / "above").rglob("*")
        if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077
    }
    assert loose == {}


def test_what_builds_ludus_is_pinned_exactly():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    names = [re.fullmatch(r"([a-z-]+)==[0-9.]+", requirement) for requirement in build["requires"]]
    needed = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
    assert all(names) and {found[1] for found in names if found} == needed


def modes(folder: Path) -> dict[bool, set[int]]:
    """Return the modes of the folders (True) and files (False) in a run, itself included."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for path in (folder, *folder.rglob("*")):
        found[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    return found


@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_a_group_may_read_what_a_shared_run_writes_then_and_later(mask, tmp_path):
    before = os.umask(mask)
    try:
        above = tmp_path / "above"
        run("sac jax", above / "run", 4, permissions="group")
        assert modes(above / "run") == {True: {0o2750}, False: {0o640}}
        assert stat.S_IMODE(above.stat().st_mode) == 0o750
        assert main(["report", str(above / "run")]) == 0
        ludus.Trainer.resume(above / "run", total_steps=iterations("sac jax", 6)).train()
        assert modes(above / "run") == {True: {0o2750}, False: {0o640}}
    finally:
        os.umask(before)


def test_a_private_run_is_private_wherever_it_is(tmp_path):
    tmp_path.chmod(0o2750)  # as the folder of a run that is shared
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_identity(status="running")
    folder.close()
    assert modes(tmp_path / "run") == {True: {0o700}, False: {0o600}}


def test_permissions_are_chosen_when_a_run_begins(tmp_path):
    with pytest.raises(LudusError, match="permissions=everybody: must be one of private, group"):
        ludus.Settings(permissions="everybody")
    run("ppo jax", tmp_path / "run", 2)
    with pytest.raises(LudusError, match="permissions: cannot be changed in a resumed run"):
        ludus.Trainer.resume(tmp_path / "run", permissions="group")
