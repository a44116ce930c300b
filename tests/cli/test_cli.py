"""The command line: what each verb prints, writes and returns, and how every mistake is answered."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

import ludus
from ludus.cli import main as cli
from ludus.runs.folder import read_config
from ludus.runs.journal import read_journal
from ludus.training.evaluation import Evaluation

pytestmark = pytest.mark.slow

TINY = ["total_steps=256", "eval_frequency=0", "algorithm.batch_size=64", "algorithm.minibatch_size=64"]
CARTPOLE = ["train", "env=CartPole-v1", *TINY]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder on environments with options of their own."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = [
        *CARTPOLE,
        "env_options.gravity=50",
        "algorithm.epochs_per_update=10",
        f"run_dir={folder}",
        "verbose=false",
    ]
    assert cli.main(words) == 0
    return folder


def in_a_process(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "ludus", *words], capture_output=True, text=True, **options)


# --- ludus ---


def test_help_imports_nothing_that_takes_long():
    code = "import sys; from ludus.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ludus train env=CartPole-v1" in done.stdout
    assert not {"jax", "hydra", "omegaconf", "numpy", "flax", "gymnasium"} & set(done.stdout.split())


def test_version_and_help(run):
    assert run("--version") == (0, f"ludus {ludus.__version__}\n", "")
    assert run("--help") == run() == run("-h")
    assert run()[0] == 0


def test_unknown_verbs_are_answered_with_the_nearest(run):
    code, out, err = run("trian")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: trian: .*did you mean train\?\n", err)


def test_python_dash_m():
    done = in_a_process("evaluate", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("ludus: nowhere: is not a run folder .*\n", done.stderr)


# --- ludus train ---


@pytest.mark.requirement("S2.1")
@pytest.mark.requirement("S2.3")
@pytest.mark.requirement("S4.11")
def test_train_obeys_saves_and_says_what_it_reached(run, tmp_path):
    code, out, err = run(*CARTPOLE, "algorithm=ppo", "seed=7", "algorithm.learning_rate=1e-3", "run_dir=first")
    assert code == 0
    assert re.match(r"256 steps, \d+ episodes, 32 updates .*\nreturn .* 100 episodes\nrun folder first\n$", out)
    assert "preset CartPole-v1/ppo\n" in err
    assert "jax:CartPole-v1" in err
    saved = read_config("first")
    assert (saved["env"], saved["seed"], saved["num_envs"], saved["total_steps"]) == ("jax:CartPole-v1", 7, 8, 256)
    assert (saved["algorithm"]["learning_rate"], saved["algorithm"]["batch_size"]) == (1e-3, 64)
    assert {"config.yaml", "run.json", "metrics.jsonl", "policies"} <= {
        path.name for path in (tmp_path / "first").iterdir()
    }


@pytest.mark.requirement("S2.3")
def test_folders_are_named_by_environment_algorithm_seed_and_time(run, monkeypatch, tmp_path):
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    assert run(*CARTPOLE, "env=gym:CartPole-v1", "num_envs=2", "seed=3")[0] == 0
    assert run(*CARTPOLE, "seed=3")[0] == 0  # within the same second
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert names == {"CartPole-v1-ppo-seed3-20260102-030405", "CartPole-v1-ppo-seed3-20260102-030405-2"}


@pytest.mark.requirement("S4.28")
def test_a_sweep_runs_every_combination_in_a_folder_of_its_own(run, tmp_path):
    words = [*CARTPOLE, "run_dir=sweep", "-m", "seed=1,2", "algorithm/network=mlp,gru", "verbose=false"]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    names = {f"seed={seed},algorithm-network={network}" for seed in (1, 2) for network in ("mlp", "gru")}
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == names
    for name in names:
        saved = read_config(tmp_path / "sweep" / name)
        assert name == f"seed={saved['seed']},algorithm-network={saved['algorithm']['network']['name']}"
        mean = read_journal(tmp_path / "sweep" / name)[-1]["eval_return_mean"]
        assert re.search(rf"^{name.replace('-', '/')} +{mean:.2f} ± .* 256 +sweep/{name}$", out, re.M)


def test_a_run_that_fails_does_not_stop_a_sweep(run):
    words = [*CARTPOLE, "run_dir=sweep", "-m", "algorithm.learning_rate=1e38,1e-3", "verbose=false"]
    code, out, err = run(*words)
    assert code == 2
    assert re.fullmatch(r"ludus: training stopped: .* is not finite .*\n", err)
    assert re.search(r"^algorithm.learning_rate=1e\+38 +failed", out, re.M)
    assert re.search(r"^algorithm.learning_rate=0.001 +[\d.]+ ± ", out, re.M)


def test_a_single_value_with_m_is_a_plain_run(run, tmp_path):
    assert run(*CARTPOLE, "run_dir=one", "-m")[0] == 0
    assert (tmp_path / "one" / "config.yaml").exists()


def test_ctrl_c_saves_prints_and_returns_130(tmp_path):
    words = ["train", "env=CartPole-v1", "total_steps=1e12", "run_dir=long", "-m", "seed=1,2"]
    command = [sys.executable, "-m", "ludus", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "long" / "seed=1" / "metrics.jsonl"
    try:
        while process.poll() is None and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped by interrupt\nrun folder long/seed=1\n" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "long" / "seed=1" / "run.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "long" / "seed=2").exists()


def test_train_help_explains_keys_and_shows_examples(run):
    code, out, err = run("train", "--help")
    assert (code, err) == (0, "")
    for text in ("examples:", "algorithm/network=gru", "hidden_sizes=[64,128,256]", "-m seed=1,2,3", "discount factor"):
        assert text in out


REFUSED = {
    "missing env": ("seed=1", "env: required"),
    "missing env by marker": ("env=???", "env: required"),
    "missing seed by marker": ("seed=???", "seed: required"),
    "unknown key": ("sed=1", "sed: no such key; did you mean seed?"),
    "unknown nested key": ("algorithm.learning_rat=1", "did you mean algorithm.learning_rate?"),
    "key without its group": ("gamma=0.9", "gamma: no such key; did you mean algorithm.gamma?"),
    "key of another network": ("algorithm.network.memory_size=8", "there are algorithm.network.hidden_sizes"),
    "unlike any key": ("zzz=1", "zzz: no such key; there are env, "),
    "network with a dot": ("algorithm.network=gru", "did you mean algorithm/network?"),
    "text for a number": (
        "algorithm.gamma=high",
        "algorithm.gamma=high: must be a number, or a schedule over progress",
    ),
    "null for a number": ("algorithm.gamma=null", "algorithm.gamma=null: must be of type float"),
    "fraction for a count": ("seed=1.5", "seed=1.5: must be of type int"),
    "number for a list": ("algorithm.network.hidden_sizes=64", "must be of type list of int"),
    "text for a truth": ("verbose=maybe", "verbose=maybe: must be of type bool"),
    "number for options": ("env_options=3", "env_options=3: must be of type dict"),
    "out of range": ("algorithm.gamma=1.5", "algorithm.gamma=1.5: must be between 0 and 1"),
    "bad choice": ("collect=all", "collect=all: must be one of steps, episodes, trajectories"),
    "bad activation": ("algorithm.network.activation=tahn", "must be one of tanh, "),
    "unknown env": ("env=CartPol-v1", "env=CartPol-v1: no such environment; did you mean CartPole-v1"),
    "unknown native env": ("env=jax:CartPol-v1", "did you mean CartPole-v1?"),
    "unknown library": ("env=brx:ant", "prefixes are jax:, gym:"),
    "unknown option": ("env_options.gravty=1", "env_options={'gravty': 1}"),
    "key as an option": ("env_options.num_envs=1", "the key is num_envs"),
    "unknown algorithm": (
        "algorithm=pop",
        "algorithm=pop: must be one of ppo, sac, bc, bc_sac, or your own as in my_module:Name; did you mean ppo?",
    ),
    "list for an algorithm": ("algorithm=[ppo]", "must be one of ppo"),
    "unknown network": (
        "algorithm/network=gro",
        "must be one of mlp, gru, transformer, or your own as in my_module:Name; did you mean gru?",
    ),
    "workers for a compiled environment": ("num_workers=2", "num_workers=2"),
    "more workers than environments": (
        "env=gym:CartPole-v1 num_envs=2 num_workers=3",
        "num_workers=3: more workers than environments (num_envs=2)",
    ),
    "an id that EnvPool does not have": ("env=envpool:CartPole-v9", "env=envpool:CartPole-v9"),
    "unknown preset": ("preset=CartPole/ppo", "did you mean CartPole-v1/ppo?"),
    "no environments": ("num_envs=0", "num_envs=0: must be an integer of at least 1"),
    "negative environments": ("num_envs=-4", "num_envs=-4: must be"),
    "environments that do not divide": ("num_envs=7", "num_envs=7: must divide algorithm.batch_size=64"),
    "no steps": ("total_steps=0", "total_steps=0: must be greater than 0"),
    "negative steps": ("total_steps=-1", "total_steps=-1: must be greater than 0"),
    "no budget": ("total_steps=null", "give total_steps, max_episodes or max_seconds"),
    "negative seed": ("seed=-1", "seed=-1: must be"),
    "minibatch above the batch": ("algorithm.minibatch_size=128", "algorithm.minibatch_size=128: must be at most"),
    "several values without -m": ("seed=1,2", "seed=1,2: several values need -m"),
    "a flag": ("--seed", "--seed: expected key=value"),
    "an unreadable value": ("run_dir=a=b", "'run_dir=\"a=b\"'"),
    "a broken interpolation": ("run_dir=${nothing}", "run_dir: Interpolation key 'nothing' not found"),
    "a removal": ("~seed=0", "a key can only be set"),
    "a folder below a file": ("run_dir=file/run", "file/run: cannot be written"),
    "a folder that is taken": ("run_dir=taken", "run_dir=taken: exists already"),
    "a bad run in a sweep": ("seed=1,-2 -m", "seed=-2: must be"),
    "a bad key in a sweep": ("seed=1,2 sed=3 -m", "did you mean seed?"),
    "an impossible sweep": ("algorithm=glob(*) -m", "algorithm=glob(*): cannot be swept"),
    "a sweep below a file": ("seed=1,2 run_dir=file/run -m", "cannot be written"),
    "a sweep that is there already": ("seed=1,2 run_dir=sweep -m", "run_dir=sweep/seed=2: exists already"),
}


def test_sac_on_discrete_actions_is_refused_in_one_line(run, tmp_path):
    code, out, err = run("train", "env=CartPole-v1", "algorithm=sac", f"run_dir={tmp_path / 'run'}")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: SAC: action space Discrete\(n=2, start=0\) is not supported[^\n]+\n", err)
    assert not (tmp_path / "run").exists()


@pytest.mark.requirement("S2.1")
@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_answered_in_one_line_and_leave_nothing_behind(case, run, tmp_path):
    words, message = REFUSED[case]
    for taken in ("taken/x", "sweep/seed=2/x"):
        (tmp_path / taken).mkdir(parents=True)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    given = ["train", *TINY, *([] if case == "missing env" else ["env=CartPole-v1"]), *words.split()]
    code, out, err = run(*given)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: [^\n]+\n", err)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_diverges_ends_with_its_reason(run):
    code, out, err = run(*CARTPOLE, "algorithm.learning_rate=1e38", "run_dir=broken", "verbose=false")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: training stopped: .* is not finite .*\n", err)


def test_bugs_are_not_hidden(run, monkeypatch):
    monkeypatch.setattr(ludus.Trainer, "train", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(*CARTPOLE)


# --- ludus evaluate ---


def test_evaluate_repeats_the_final_evaluation_with_the_environment_of_the_run(run, trained):
    assert read_config(trained)["env_options"] == {"gravity": 50}
    final = read_journal(trained)[-1]
    code, out, err = run("evaluate", str(trained), "--episodes", "100", "--json")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert out.count("\n") == 1
    assert (summary["mean_return"], summary["std_return"]) == (final["eval_return_mean"], final["eval_return_std"])
    assert summary["episodes"] == 100
    elsewhere = json.loads(run("evaluate", str(trained), "--env", "CartPole-v1", "--json")[1])
    assert elsewhere["mean_return"] != summary["mean_return"]


@pytest.mark.requirement("S2.29")
def test_evaluate_writes_a_table_of_the_episodes(run, trained, tmp_path):
    code, out, _ = run("evaluate", str(trained), "--episodes", "7", "--json", "--csv", str(tmp_path / "episodes.csv"))
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert code == 0 and lines[0] == "episode,return,length" and len(lines) == 8
    rows = [[float(cell) for cell in line.split(",")] for line in lines[1:]]
    assert [row[0] for row in rows] == list(range(7))
    assert sum(row[1] for row in rows) / 7 == pytest.approx(json.loads(out)["mean_return"])
    code, _, err = run("evaluate", str(trained), "--csv", str(tmp_path / "nowhere" / "episodes.csv"))
    assert code == 2 and "cannot be written" in err


def test_evaluate_prints_json_that_every_reader_knows(run, trained, monkeypatch):
    never = {"info/time_to_collision/last": np.array([np.inf, np.inf])}
    odd = Evaluation(np.array([2.0, 1.0]), np.array([3, 4]), never)
    monkeypatch.setattr("ludus.training.evaluation.evaluate", lambda *_, **__: odd)
    code, out, _ = run("evaluate", str(trained), "--json")
    summary = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert (code, summary["mean_return"], summary["info/time_to_collision/last"]) == (0, 1.5, None)


def test_evaluate_obeys_episodes_and_seed(run, trained):
    code, out, _ = run("evaluate", str(trained), "--episodes", "7")
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("return ")
    assert "7 episodes" in out
    first, second = (run("evaluate", str(trained), "--seed", seed)[1] for seed in "12")
    assert first != second


def test_evaluate_samples_actions_if_asked_to(run, trained):
    code, out, err = run("evaluate", str(trained), "--stochastic")
    assert (code, err) == (0, "")
    assert out == run("evaluate", str(trained), "--stochastic")[1] != run("evaluate", str(trained))[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "RUN"),
        ("nowhere", "nowhere: is not a run folder"),
        (".", "is not a run folder"),
        ("RUN --episodes 0", "episodes=0: must be"),
        ("RUN --episodes many", "--episodes=many: must be an integer, or all"),
        ("RUN --episode-count 3", "--episode-count"),
        ("RUN --env Acrobot-v1", "observation space"),
        ("RUN --env CartPol-v1", "did you mean CartPole-v1"),
    ],
)
def test_mistakes_in_evaluate(words, message, run, trained):
    code, out, err = run("evaluate", *words.replace("RUN", str(trained)).split())
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: [^\n]+\n", err)
    assert message in err


def damage_policy(folder):
    policy = folder / "policies" / "final_actor.safetensors"
    policy.write_bytes(policy.read_bytes()[:-100])


def train_on_an_object(folder):
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"env": "object:Mine"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage_policy, "not a readable policy file"),
        (train_on_an_object, "use ludus.evaluate in Python"),
        (lambda folder: shutil.rmtree(folder / "policies"), "has no final policy"),
        (lambda folder: (folder / "config.yaml").write_text("{"), "is not readable YAML"),
    ],
)
def test_damaged_runs_are_answered_in_one_line(harm, message, run, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    harm(tmp_path / "copy")
    code, out, err = run("evaluate", "copy")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ludus: [^\n]+\n", err)
    assert message in err


def test_a_device_that_is_not_there_is_one_line(tmp_path):
    command = [sys.executable, "-m", "ludus", "train", "env=CartPole-v1", "run_dir=run"]
    environment = {**os.environ, "JAX_PLATFORMS": "nope"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("ludus: JAX has no device to run on")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_killed_is_evaluated_from_its_checkpoint(run, trained, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(trained, killed)
    (killed / "policies" / "final_actor.safetensors").unlink()
    code, out, err = run("evaluate", str(killed))
    assert (code, out) == (2, "") and re.fullmatch(r"ludus: [^\n]+--checkpoint latest[^\n]+\n", err)
    assert run("evaluate", str(killed), "--checkpoint", "latest", "--episodes", "2")[0] == 0


def test_the_newest_run_is_evaluated_if_none_is_named(run):
    assert run("evaluate")[0] == 2
    assert run(*CARTPOLE, "seed=1", "run_dir=runs/old")[0] == 0
    assert run(*CARTPOLE, "seed=2", "run_dir=runs/new")[0] == 0
    newest, named = run("evaluate", "--json"), run("evaluate", "runs/new", "--json")
    assert newest[0] == 0 and newest[1] == named[1]
