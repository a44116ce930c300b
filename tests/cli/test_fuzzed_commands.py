"""Whatever is typed, and whatever stands in a run folder: an answer in one line, and never a traceback."""

import os
import random

import pytest
from fuzzed_commands import trial
from resume_runs import run

import ludus.export
import ludus.training.evaluation
import ludus.training.verify
from ludus import LudusError
from ludus.cli.main import main
from ludus.training.trainer import Trainer

pytestmark = pytest.mark.slow

COUNT = 300


def refuse(*_, **__):
    raise LudusError("this would go on for long")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed") / "run"
    run("ppo jax", folder, 2)
    return folder


@pytest.mark.parametrize("part", range(3))
def test_no_command_and_no_damaged_run_folder_gives_a_traceback(part, small_run, tmp_path, monkeypatch, capfd):
    evaluate = ludus.training.evaluation.evaluate
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trainer, "train", refuse)
    monkeypatch.setattr(ludus.training.verify, "_try_iteration", refuse)
    monkeypatch.setattr(ludus.export, "export_policy", refuse)
    short = lambda policy, env, episodes, *rest, **more: evaluate(policy, env, min(episodes, 1), *rest, **more)  # noqa: E731
    monkeypatch.setattr(ludus.training.evaluation, "evaluate", short)
    failures, codes = [], set()
    for number in range(part * COUNT // 3, (part + 1) * COUNT // 3):
        words, _ = trial(number, small_run, tmp_path)
        random.seed(0)
        try:
            code = main(words)
        except SystemExit as error:  # --help of a verb
            code = error.code or 0
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"[:200]
        said = capfd.readouterr().err
        lines = [line for line in said.splitlines() if line.startswith("ludus: ")]
        codes.add(code)
        if code not in (0, 1, 2) or "Traceback" in said or (code == 2 and len(lines) != 1):
            failures.append((number, code, [word[:80] for word in words], said[-300:]))
    assert failures == []
    assert 2 in codes
    assert os.getcwd() == str(tmp_path)
