"""Every code block in README and docs runs."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from run_folders import learning_rows, make_run

from ludus.algorithms.policy import BEST, FINAL
from ludus.cli.main import main
from ludus.training import config

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        code = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        found += [pytest.param(text, id=f"{page.name}-{i}") for i, text in enumerate(code)]
    return found


STRICT = """
import ludus.cli.main

run = ludus.cli.main.main


def main(words):
    code = run(words)
    assert code == 0, f"{words}: exit code {code}"
    return code


ludus.cli.main.main = main
"""
"""Goes before blocks that give commands: what they name is there only if the command before has made it."""


def results(code: str) -> list[str]:
    """Return the numbers that a block says it prints."""
    said = re.findall(r"^ *print\(.*\)  # (\d.*)$", code, re.MULTILINE)
    return [number for text in said for number in re.findall(r"\d+", text)]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run_to_the_result_that_they_name(code, tmp_path):
    strict = STRICT if "from ludus.cli.main import main" in code else ""
    command = [sys.executable, "-c", strict + code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(results(code)) <= set(re.findall(r"\d+", done.stdout)), done.stdout


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.values[0].splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip() and not line.startswith("#")]


def sets_made() -> list[list[str]]:
    return [words for words in commands() if words[:3] == ["ludus", "scenarios", "make"]]


PRESETS = Path(config.__file__).parent / "presets"
JUDGED = [path.parent.name for path in PRESETS.rglob("*.yaml") if "\nconvergence:" in path.read_text()]
"""Environments that have a preset with a rule by evaluations."""


def is_for_itself(words: list[str]) -> bool:
    """Whether a command needs nothing that another one makes."""
    return not any(
        word.startswith(("algorithm.demonstrations=", "init_from=", "reward.demonstrations=", "reward.model="))
        for word in words
    )


def without_its_name(words: list[str]) -> frozenset[str]:
    """Return what a short run of a command depends on: not its folder, its seed, or its length."""
    return frozenset(word for word in words if not word.startswith(("run_dir=", "seed=", "total_steps=")))


TRAINING = [words for words in commands() if words[:2] == ["ludus", "train"] and is_for_itself(words)]
DIFFERENT = list({without_its_name(words): words for words in reversed(TRAINING)}.values())[::-1]
"""Those that are the same work when they are cut short are run once."""


@pytest.mark.parametrize("words", DIFFERENT, ids=" ".join)
def test_training_commands_run(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code in (block.values[0] for block in blocks("python")):
        if named := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / named[1]).write_text(code)
    if any(word.startswith("env_options.scenarios=") for word in words):
        for before in sets_made():
            assert main(before[1:]) == 0
    by_evaluations = any(word.endswith(("rule=interval", "rule=plateau", *JUDGED)) for word in words)
    short = ["total_steps=1", f"eval_frequency={int(by_evaluations)}", "eval_episodes_final=2", "verbose=false"]
    short = [] if "--help" in words else short
    if any(word.startswith("devices=") for word in words):  # JAX runs here already, on one
        command = [sys.executable, "-m", "ludus", *words[1:], *short]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
        return
    assert main(words[1:] + short) == 0


def test_scenario_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    others = [words for words in commands() if words[:2] == ["ludus", "scenarios"] and words[2] != "make"]
    assert len(others) > 1
    for words in [*sets_made(), *others]:
        assert main(words[1:]) == 0


def test_commands_from_demonstrations_to_a_better_policy_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "en" / "demonstrations.md").read_text()
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)).splitlines():
        words = shlex.split(line)[1:]
        short = ["total_steps=1", "eval_frequency=0", "eval_episodes_final=1", "verbose=false"]
        assert main([*words, *(short if words[0] == "train" else ["--episodes", "2"])]) == 0


def test_evaluation_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in commands():
        if words[0].endswith("ludus") and words[1] == "evaluate":
            run = "runs/one" if words[2].startswith("--") else words[2]
            if not Path(run).exists():
                assert main(["train", "env=CartPole-v1", "total_steps=1", "verbose=false", f"run_dir={run}"]) == 0
            assert main(words[1:]) == 0


def test_commands_on_a_run_that_exists_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for i, words in enumerate(words for words in commands() if words[1:2] in (["resume"], ["verify-resume"])):
        run = f"runs/{i}"
        short = ["total_steps=2048", "eval_frequency=1", "verbose=false", f"run_dir={run}"]
        assert main(["train", "env=CartPole-v1", *short]) == 0
        rest = ["total_steps=4096" if word.startswith("total_steps=") else word for word in words[3:]]
        assert main([words[1], run, *rest]) == 0


def test_the_settings_page_lists_every_key_as_help_does():
    from ludus.training.config import help_text

    page = (ROOT / "docs" / "en" / "settings.md").read_text()
    told = {line.split()[0]: line for line in help_text().splitlines() if line.startswith("  ")}
    told = {key: line for key, line in told.items() if not key.startswith("algorithm")}
    listed = {
        key: rest for key, *rest in re.findall(r"^\| `([\w.]+)` \| (.+?) \| `(.*?)` \| (.+) \|$", page, re.MULTILINE)
    }
    assert listed.keys() == told.keys()
    for key, parts in listed.items():
        assert " ".join([key, *parts]) == " ".join(told[key].split())


def test_export_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for i, words in enumerate(words for words in commands() if words[:2] == ["ludus", "export"]):
        run = Path(f"runs/{i}")
        assert main(["train", "env=Pendulum-v1", "total_steps=1", "verbose=false", f"run_dir={run}"]) == 0
        shutil.copy(run / FINAL, run / BEST)  # so short a run has no best one
        assert main(["export", str(run), *words[3:]]) == 0


def test_tracking_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = [words for words in commands() if words[:2] == ["ludus", "track"]]
    assert found
    for words in found:
        assert main(["train", "env=CartPole-v1", "total_steps=1", "verbose=false", f"run_dir={words[2]}"]) == 0
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_mlflow_page_lists_every_second_name():
    from ludus.runs.metrics import ALIASES
    from ludus.runs.trackers.mlflow.names import PARAMETERS, WINDOWS

    page = (ROOT / "docs" / "en" / "mlflow.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (`.*) \|$", page, re.MULTILINE))
    known = {**ALIASES, **{ours: (theirs,) for ours, theirs in PARAMETERS.items()}}
    said = {ours: set(re.findall(r"`(\w+)`", theirs)) for ours, theirs in rows.items()}
    assert said == {ours: {name.removeprefix("-") for name in theirs} for ours, theirs in known.items()}
    assert all(f"`{name}`" in page for name in WINDOWS)


def test_film_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = ["env_options.max_episode_steps=10", "total_steps=1", "verbose=false", "run_dir=runs/one"]
    assert main(["train", "env=Pendulum-v1", *short]) == 0
    for words in commands():
        if words[0].endswith("ludus") and words[1] == "video":
            options = [word for word in words[2:] if not word.startswith("runs/")]
            assert main(["video", "runs/one", *options]) == 0


def test_commands_that_read_runs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for words in commands():
        if words[0] == "ludus" and words[1] in ("runs", "compare", "report"):
            for i, run in enumerate(word for word in words[2:] if word.startswith("runs/")):
                if not Path(run).exists():
                    if "--branches" in words:  # a policy plays: it is trained, as the page says
                        before = next(words for words in TRAINING if f"run_dir={run}" in words)
                        assert main([*before[1:], "total_steps=1", "verbose=false"]) == 0
                    else:
                        make_run(Path(run), learning_rows(20), seed=i)
            assert main([*words[1:], *(["--no-images"] if words[1] == "report" else [])]) == 0


def test_watching_commands_run(tmp_path, monkeypatch, capsys):
    from ludus.report.live import server

    async def watch(folder, host, port, say):
        say(f"{folder} {host} {port}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "watch", watch)
    Path("runs").mkdir()
    found = [words for words in commands() if words[:2] == ["ludus", "watch"]]
    assert found
    assert [main(words[1:]) for words in found] == [0] * len(found)


@pytest.mark.requirement("S1.32")
def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for page in PAGES for word in re.findall(r"`?make ([a-z]+)", page.read_text())}
    assert named & {"install", "train", "test"}
    assert {words[1] for words in commands() if words[0] == "make"} <= targets


def test_links_to_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_test_that_the_ppo_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "en" / "ppo.md").read_text()))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named and named <= defined


def test_the_ppo_page_lists_every_metric():
    from ludus.algorithms.ppo import METRICS

    page = (ROOT / "docs" / "en" / "ppo.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(METRICS)
