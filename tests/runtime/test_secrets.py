"""Secrets: a literal one is refused, and of one that a variable names no file ever holds the value."""

import gymnasium
import numpy as np
import pytest

import ludus
from ludus.cli.main import main
from ludus.runs.folder import read_config
from ludus.runtime import secrets
from ludus.training.config import compose
from ludus.types import LudusError

pytestmark = pytest.mark.slow

CANARY, LATER = "c4n4ry-of-the-first-run", "c4n4ry-of-the-second"
NAMED = "${oc.env:LUDUS_TEST_KEY}"
seen: list[str] = []


class Locked(gymnasium.Env):
    """Opens for whoever has the key; `talks` repeats it in an error."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, api_key: str, talks: bool = False):
        self.key, self.talks, self.steps = api_key, talks, 0
        seen.append(api_key)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.talks and self.steps > 5:
            raise ConnectionError(f"the server did not take {self.key}")
        return np.zeros(2, np.float32), 1.0, self.steps % 7 == 0, False, {}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setenv("LUDUS_TEST_KEY", CANARY)
    monkeypatch.setattr(secrets, "_values", {})
    seen.clear()
    ludus.register_env("Locked-v0", Locked)


def trainer(run, num_workers=0, **options) -> ludus.Trainer:
    env = ludus.make_env("gym:Locked-v0", 2, num_workers=num_workers, **options)
    settings = ludus.Settings(eval_episodes_final=0, record_behaviour=False, verbose=False, num_checkpoints=0)
    ppo = ludus.PPO(batch_size=16, minibatch_size=8, epochs_per_update=1)
    return ludus.Trainer(ppo, env, settings, run_dir=run)


def holding(folder, *values: str) -> list:
    return [
        path for path in folder.rglob("*") for value in values if path.is_file() and value.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_saves_the_name_of_the_variable_and_reads_it_again(num_workers, tmp_path, monkeypatch):
    trainer(tmp_path / "run", num_workers, api_key=NAMED).train(total_steps=32)
    assert num_workers or set(seen) == {CANARY}
    assert read_config(tmp_path / "run")["env_options"] == {"api_key": NAMED}
    seen.clear()
    monkeypatch.setenv("LUDUS_TEST_KEY", LATER)
    again = ludus.Trainer.resume(tmp_path / "run", total_steps=64)
    again.train()
    assert num_workers or set(seen) == {LATER}
    assert len(list((tmp_path / "run").rglob("*"))) > 8
    assert holding(tmp_path, CANARY, LATER) == []
    assert read_config(tmp_path / "run")["env_options"] == {"api_key": NAMED}
    monkeypatch.delenv("LUDUS_TEST_KEY")
    with pytest.raises(LudusError, match=r"^env_options.api_key=\$\{oc.env:LUDUS_TEST_KEY\}: .* is not set$"):
        ludus.Trainer.resume(tmp_path / "run", total_steps=96)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_repeats_it_is_written_down_without_it(num_workers, tmp_path):
    made = trainer(tmp_path / "run", num_workers, api_key=NAMED, talks=True)
    made.record.console.verbose = True
    with pytest.raises(LudusError):
        made.train(total_steps=10_000)
    assert f"did not take {NAMED}" in (tmp_path / "run" / "log.txt").read_text()
    assert holding(tmp_path, CANARY) == []


def test_a_literal_one_is_refused_before_anything_is_written(tmp_path, capsys):
    with pytest.raises(LudusError, match=r"env_options.api_key: looks like a secret.*oc.env:API_KEY") as caught:
        trainer(tmp_path / "run", api_key=CANARY)
    assert CANARY not in str(caught.value)
    words = ["env=gym:Locked-v0", f"env_options.api_key={CANARY}", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert "'env_options.api_key=${oc.env:API_KEY}'" in said
    assert CANARY not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "is_refused"), [
    ({"API_TOKEN": "abc"}, True), ({"dbPassword": "abc"}, True), ({"api-key": "abc"}, True), ({"password": 1234}, True),
    ({"server": {"auth": {"token": "abc"}}}, True), ({"tokens": ["abc"]}, True), ({"client_secret": "a"}, True),
    ({"token": NAMED}, False), ({"token": f"Bearer {NAMED}"}, False), ({"token": "${oc.env:NAME,abc}"}, True),
    ({"num_tokens": 128}, False), ({"token": None}, False), ({"use_token": True}, False), ({"key": "abc"}, False),
])  # fmt: skip
def test_which_keys_look_like_a_secret(options, is_refused):
    if not is_refused:
        return secrets.check("env_options", options)
    with pytest.raises(LudusError, match="looks like a secret"):
        secrets.check("env_options", options)


def test_what_is_advised_works(monkeypatch):
    monkeypatch.setenv("TOKEN", CANARY)
    with pytest.raises(LudusError, match=r"and give 'env_options.auth.token=\$\{oc.env:TOKEN\}'$"):
        secrets.check("env_options", {"auth": {"token": "abc"}})
    with pytest.raises(LudusError, match=r"and give \$\{oc.env:TOKEN\} in its place$"):
        compose(["env=CartPole-v1", "tracking.own=[{name:'a:B',token:abc}]"])
    named = compose(["env=CartPole-v1", "tracking.own=[{name:'a:B',token:'${oc.env:TOKEN}'}]"])
    assert list(named.tracking.own) == [{"name": "a:B", "token": "${oc.env:TOKEN}"}]


def test_words_and_files_keep_what_names_a_variable(tmp_path):
    words = ["env=gym:Locked-v0", f"env_options.api_key={NAMED}", "env_options.many=${num_envs}", "num_envs=3"]
    made = compose([*words, f"env_wrappers=[{{name:'a:B',token:'{NAMED}'}}]", "run_dir=${oc.env:LUDUS_TEST_KEY}"])
    assert made.env_options == {"api_key": NAMED, "many": 3}
    assert made.env_wrappers == [{"name": "a:B", "token": NAMED}]
    assert made.run_dir == CANARY  # a place is no secret: it must be known to be found again
    with pytest.raises(LudusError, match=r"env_wrappers.token: looks like a secret"):
        compose(["env=gym:Locked-v0", "env_wrappers=[{name:'a:B',token:abc}]"])
    with pytest.raises(LudusError, match=r"env_options.api_key: looks like a secret"):
        compose(["env=gym:Locked-v0", "env_options.api_key=${oc.env:NOWHERE,fallback}"])
