"""A run of `driving` from its scenarios to its films: what one evaluation says, shows and keeps."""

import csv
import json

import pytest

from ludus.cli import main as cli

pytestmark = pytest.mark.slow
TINY = ("algorithm.batch_size=32", "algorithm.minibatch_size=32", "algorithm.network.hidden_sizes=[8]", "num_envs=4")
QUIET = ("verbose=false", "eval_frequency=0", "eval_episodes_final=1", "record_behaviour=false")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has hardly learnt, on a small stored set."""
    folder = tmp_path_factory.mktemp("driving")
    made = ("scenarios", "make", "driving", "--count", "8", "--out", str(folder / "roads"))
    assert cli.main(list(made)) == 0
    words = ("env=driving", "algorithm=ppo", f"env_options.scenarios={folder / 'roads'}", *TINY, *QUIET)
    assert cli.main(["train", *words, "total_steps=32", f"run_dir={folder / 'run'}"]) == 0
    return folder / "run"


@pytest.mark.requirement("S2.29", "S2.30")
def test_variants_are_side_by_side_and_the_worst_are_filmed(run, trained, tmp_path):
    words = ("evaluate", trained, "--episodes", "4", "--variant", "none,noisy", "--film", "1")
    code, out, err = run(*words, "--csv", tmp_path / "rows.csv")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("policy nominal: return ") and lines[1].startswith("policy noisy: return ")
    assert lines[2].split("  ")[0] == "mean [95% interval]" and lines[2].split("  ")[-1].strip() == "policy noisy"
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["none"] * 4 + ["noisy"] * 4
    progress = [row["info/progress/last"] for row in rows]
    assert progress[:4] != progress[4:], "a noisy start is another one"
    for variant, first in (("nominal", 0), ("noisy", 4)):
        returns = [float(row["return"]) for row in rows[first : first + 4]]
        name = f"final-policy-{variant}-worst1"
        assert (trained / "videos" / f"{name}.mp4").stat().st_size > 1000
        drawn = [json.loads(line) for line in (trained / "videos" / f"{name}.jsonl").read_text().splitlines()]
        assert drawn[-1]["return"] == pytest.approx(min(returns), abs=0.01), "of these, the worst"
        assert str(trained / "videos" / f"{name}.mp4") in err


@pytest.mark.requirement("S2.29", "S4.23")
def test_a_policy_is_filmed_from_above(run, trained):
    code, out, _ = run("video", trained)
    film = trained / "videos" / "final.mp4"
    assert code == 0 and str(film) in out
    assert film.stat().st_size > 1000 and len(film.with_suffix(".jsonl").read_text().splitlines()) >= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--driver", "idm", "env=driving", "--film", "1"), "--film=1: films are kept in a run folder; name a RUN"),
        (("run", "--film", "-1"), "--film=-1: must be at least 0"),
        (("run", "--film", "1", "--stochastic"), "--film=1: films the greedy policy; leave out --stochastic"),
        (("run", "--film", "1", "--driver", "idm"), "--film=1: films the greedy policy; leave out --driver"),
    ],
)
def test_a_mistake_about_films_is_one_line(run, words, message):
    code, out, err = run("evaluate", *words)
    assert (code, out, err) == (2, "", f"ludus: {message}\n")
