"""Several processes train one run: the numbers of one process, and the end of all where one is lost."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from copied_runs import SmallRun
from cut_links import Link, link
from safetensors.numpy import load_file

import ludus
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.storage.following import push
from ludus.runs.storage.options import StorageOptions
from ludus.training.distributed import hosts
from ludus.training.distributed.hosts import LOST, Peer, Team
from ludus.training.distributed.seats import HostOptions, Seat, seat_of
from ludus.training.verify import state_of
from ludus.types import LudusError

SMALL = [
    "env=CartPole-v1", "num_envs=16", "algorithm.batch_size=64", "algorithm.minibatch_size=32", "preset=null", "seed=3",
    "algorithm.network.hidden_sizes=[8]", "algorithm.anneal_learning_rate=false", "health_frequency=0",
    "eval_frequency=0", "eval_episodes_final=0", "record_behaviour=false", "tracking.tensorboard=false",
    "num_checkpoints=0", "checkpoint.every_iterations=2", "verbose=false",
]  # fmt: skip
ENDLESS = [*SMALL, "total_steps=100_000_000"]
SILENCE = 20
"""Seconds of silence after which a process counts as lost: enough for one on a busy machine."""


def free_port() -> int:
    """Return a port that is free, and the one after it most likely too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Pair:
    """Two processes that run one command, each with an end of its own."""

    def __init__(self, folder: Path, *words: str, link: Link | None = None, silence: int = SILENCE):
        """Start both."""
        address = f"127.0.0.1:{free_port()}"
        prefix, *addresses = ((), address, address) if link is None else link[:3]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
        self.files = [folder / f"said-{number}-{time.monotonic_ns()}" for number in (0, 1)]
        self.processes = []
        for number, file in enumerate(self.files):
            together = ["hosts.count=2", f"hosts.address={addresses[number]}", f"hosts.timeout={silence}"]
            together += ["hosts.patience=100", f"hosts.number={number}"]
            command = [*prefix, sys.executable, "-m", "ludus", *words, *together]
            with file.open("w") as said:
                self.processes.append(
                    subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
                )

    def __enter__(self) -> "Pair":
        """Go on."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self, number: int) -> str:
        """Return what a process has printed."""
        return "\n".join(x for x in self.files[number].read_text().splitlines() if not x.startswith("[Gloo]"))

    def ended(self, number: int, within: float = 200) -> int:
        """Wait for the end of a process; return its exit code."""
        return self.processes[number].wait(within)

    def until_saved(self, run: Path) -> None:
        """Wait until there is a checkpoint, and both have heard of it."""
        until = time.monotonic() + 200
        while time.monotonic() < until and all(process.poll() is None for process in self.processes):
            if run.exists() and Checkpoints(run).steps():
                time.sleep(5)  # several signs of life, on a busy machine too
                return
            time.sleep(0.1)
        raise AssertionError(self.said(0) + self.said(1))


@pytest.mark.slow
@pytest.mark.requirement("S0.23")
def test_two_processes_compute_what_one_does_and_write_one_run(tmp_path):
    with Pair(tmp_path, "train", *SMALL, "run_dir=two", "total_steps=128") as pair:
        assert (pair.ended(0), pair.ended(1)) == (0, 0), pair.said(0) + pair.said(1)
    ppo = ludus.PPO(
        batch_size=64, minibatch_size=32, network=ludus.MLP((8,)), anneal_learning_rate=False, normalize_returns=True
    )
    quiet = {"eval_frequency": 0, "eval_episodes_final": 0, "record_behaviour": False, "verbose": False}
    settings = ludus.Settings(seed=3, health_frequency=0, num_checkpoints=0, **quiet)
    one = ludus.Trainer(ppo, ludus.make_env("CartPole-v1", 16), settings, run_dir=tmp_path / "one")
    one.train(total_steps=128)
    states = state_of(tmp_path / "two"), state_of(tmp_path / "one")
    for name, ours in states[0].items():
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, states[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
    policies = [load_file(tmp_path / run / "policies" / "final_actor.safetensors") for run in ("two", "one")]
    for name, ours in policies[0].items():
        np.testing.assert_allclose(ours, policies[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert len(read_identity(tmp_path / "two")["devices"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["one", "two"]


GOES_ON = re.compile(r"process (\d) ends; the run goes on from ([\d,]+) steps on: ludus resume run")


def goes_on_from(said: str) -> int:
    """Return the step that a process says the run goes on from."""
    found = GOES_ON.search(said.splitlines()[-1])
    assert found, said
    return int(found[2].replace(",", ""))


@pytest.mark.slow
def test_where_a_process_is_killed_the_other_ends_and_the_run_goes_on_with_one(tmp_path):
    with Pair(tmp_path, "train", *ENDLESS, "run_dir=run") as pair:
        pair.until_saved(tmp_path / "run")
        pair.processes[1].kill()
        assert pair.ended(0, within=60) == LOST, pair.said(0)
    assert "process 1 has ended or is cut off; process 0 ends" in pair.said(0)
    step = goes_on_from(pair.said(0))
    assert step == Checkpoints(tmp_path / "run").latest()
    resumed = ludus.Trainer.resume(tmp_path / "run", total_steps=step + 128, verbose=False, **{"hosts.count": 1})
    assert resumed.train().steps == step + 128
    assert read_identity(tmp_path / "run")["resumed"] == [{"steps": step, "level": "devices"}]


@pytest.mark.slow
def test_where_the_leader_is_stopped_all_end_and_the_run_goes_on_exactly_with_two(tmp_path):
    with Pair(tmp_path, "train", *ENDLESS, "run_dir=run") as pair:
        pair.until_saved(tmp_path / "run")
        pair.processes[0].send_signal(signal.SIGSTOP)
        assert pair.ended(1, within=60) == LOST, pair.said(1)
        assert f"process 0 has been silent for {SILENCE} s: dead, stopped or cut off" in pair.said(1)
        step = goes_on_from(pair.said(1))
        assert step in Checkpoints(tmp_path / "run").steps()
        pair.processes[0].send_signal(signal.SIGCONT)
        assert pair.ended(0, within=60) == LOST, pair.said(0)
    latest = Checkpoints(tmp_path / "run").latest()
    with Pair(tmp_path, "resume", "run", f"total_steps={latest + 128}") as pair:
        assert (pair.ended(0), pair.ended(1)) == (0, 0), pair.said(0) + pair.said(1)
    assert read_identity(tmp_path / "run")["resumed"] == [{"steps": latest, "level": "exact"}]
    assert read_identity(tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
def test_where_the_link_is_cut_both_end_and_name_the_same_step(tmp_path):
    words = [*ENDLESS, "run_dir=run", "checkpoint.every_iterations=0", "checkpoint.every_minutes=0.14"]
    with link(free_port()) as between, Pair(tmp_path, "train", *words, link=between, silence=6) as pair:
        pair.until_saved(tmp_path / "run")  # the next one comes three seconds later than that
        between.cut()
        assert [pair.ended(number, within=60) for number in (0, 1)] == [LOST, LOST], pair.said(0) + pair.said(1)
    for number in (0, 1):
        assert f"process {1 - number} has been silent for 6 s: dead, stopped or cut off" in pair.said(number)
        assert goes_on_from(pair.said(number)) == Checkpoints(tmp_path / "run").latest()


@pytest.mark.slow
def test_a_signal_to_any_process_saves_and_ends_the_run_for_all(tmp_path):
    with Pair(tmp_path, "train", *ENDLESS, "run_dir=run") as pair:
        pair.until_saved(tmp_path / "run")
        pair.processes[1].terminate()
        assert (pair.ended(0, within=60), pair.ended(1, within=60)) == (143, 0), pair.said(0) + pair.said(1)
    identity = read_identity(tmp_path / "run")
    assert identity["status"] == "interrupted"
    assert Checkpoints(tmp_path / "run").latest() == identity["steps"]


@pytest.mark.slow
def test_a_coordinator_that_does_not_answer_is_one_line(run):
    words = ["train", "env=CartPole-v1", "hosts.count=2", "hosts.patience=3", f"hosts.address=127.0.0.1:{free_port()}"]
    code, _, said = run(*words, "hosts.number=1")
    assert code == 2
    assert said.count("\n") == 1
    assert re.search(r"hosts.address=127.0.0.1:\d+: process 0 does not answer \(Connection refused\)", said)
    code, _, said = run(*words, "hosts.number=0")
    assert (code, said) == (2, "ludus: hosts.count=2: process 1 has not come in time\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["hosts.count=2"], "hosts.number: is missing; give each of the 2 processes its own, from 0 to 1"),
        (["hosts.count=2", "hosts.number=2", "hosts.address=a:1"], "hosts.number=2: must be from 0 to 1, less than"),
        (["hosts.count=2", "hosts.number=0"], "hosts.address: is missing; give HOST:PORT of process 0"),
        (["hosts.count=2", "hosts.number=0", "hosts.address=here"], "hosts.address=here: must be HOST:PORT, such as"),
        (["hosts.count=0"], "hosts.count=0: must be an integer of at least 1"),
        (["hosts.timeout=1"], "hosts.timeout=1.0: must be at least 3 seconds"),
        (["hosts.launcher=slurm"], "hosts.launcher=slurm: SLURM_NTASKS is not set; start it with srun"),
        (["hosts.launcher=mpi"], "hosts.launcher=mpi: must be one of none, slurm, variables"),
        (
            ["-m", "seed=1,2", "hosts.count=2", "hosts.number=0", "hosts.address=a:1"],
            "hosts.count=2: processes can tra",
        ),
    ],
)
def test_mistakes_are_one_line(run, monkeypatch, words, expected):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    code, _, said = run("train", "env=CartPole-v1", *words)
    assert code == 2
    assert said.startswith(f"ludus: {expected}")
    assert said.count("\n") == 1


def test_several_processes_do_not_restore_a_run_each(run, tmp_path):
    SmallRun(tmp_path / "two", hosts={"count": 2, "launcher": "none"})
    push(tmp_path / "two", StorageOptions(url=str(tmp_path / "drive")))
    words = ["resume", str(tmp_path / "drive" / "two")]
    for word in ("hosts.count=2", "hosts.launcher=slurm"):
        code, _, said = run(*words, word, "hosts.number=0", "hosts.address=127.0.0.1:1")
        assert (code, said.count("\n")) == (2, 1)
        assert said.startswith(f"ludus: {word}: restore the run first (ludus pull {words[1]})")
        assert not (tmp_path / "runs").exists()
    code, _, said = run(*words)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("ludus: hosts.count=2: the run was trained by several processes and is restored; ludus resu")
    assert (tmp_path / "runs" / "two" / "config.yaml").exists()
    shutil.rmtree(tmp_path / "runs")
    code, _, said = run(*words, "hosts.count=1")
    assert "hosts" not in said  # it goes on, as far as so small a run can


def test_in_python_there_is_one_process():
    settings = ludus.Settings(hosts=HostOptions(count=2, number=0, address="127.0.0.1:1"), verbose=False)
    with pytest.raises(LudusError, match=r"hosts.count=2: is for the command line"):
        ludus.Trainer(ludus.PPO(), ludus.make_env("CartPole-v1", 8), settings)


def test_launchers_say_who_a_process_is():
    slurm = {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_ID": "40007"}
    seats = {
        "gpu[003-007,12],cpu1": Seat(4, 3, "gpu003", 20_007),
        "node-1,node-2": Seat(4, 3, "node-1", 20_007),
        "n[1-2].cluster": Seat(4, 3, "n1.cluster", 20_007),
    }
    for nodes, seat in seats.items():
        assert seat_of(HostOptions(launcher="slurm"), {**slurm, "SLURM_STEP_NODELIST": nodes}) == seat
    variables = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
    assert seat_of(HostOptions(launcher="variables"), variables) == Seat(2, 1, "10.0.0.1", 29400)
    own = HostOptions(launcher="variables", number=0, address="10.0.0.2:1234")
    assert seat_of(own, variables) == Seat(2, 0, "10.0.0.2", 1234)
    assert seat_of(HostOptions(launcher="variables"), {**variables, "WORLD_SIZE": "1"}) is None
    with pytest.raises(LudusError, match=r"hosts.launcher=variables: RANK=one: must be a whole number"):
        seat_of(HostOptions(launcher="variables"), {**variables, "RANK": "one"})
    assert seat_of(HostOptions()) is None


@pytest.fixture
def ends(monkeypatch) -> list[str]:
    """Why a team gave up, which ends no process here."""
    said: list[str] = []
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(Team, "_give_up", lambda self, why: None if self._is_over.is_set() else said.append(why))
    return said


class Terms(NamedTuple):
    """As `HostOptions`, which knows no such haste."""

    timeout: float
    patience: float


@contextlib.contextmanager
def team(timeout: float = 0.3) -> Iterator[tuple[Team, Peer]]:
    """A leader, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    leader, other = Team(Seat(2, 0, "here", 1), Terms(timeout, timeout), [Peer(1, ours)]), Peer(0, theirs)
    yield leader, other
    leader.close()
    while other.receive() is not None:
        pass


def wait_for(ends: list[str], seconds: float = 5.0) -> list[str]:
    until = time.monotonic() + seconds
    while not ends and time.monotonic() < until:
        time.sleep(0.01)
    return ends


def test_silence_is_a_loss_and_signs_of_life_are_not(ends):
    with team(1.0) as (leader, other):
        for _ in range(30):
            other.send(do="live", saved="from 12 steps on")
            time.sleep(0.05)
        assert ends == []
        assert leader.saved() == "from 12 steps on"
        assert "process 1 has been silent for 1 s: dead, stopped or cut off" in wait_for(ends)[0]


def test_a_connection_that_breaks_is_a_loss(ends):
    with team() as (_, other):
        other.close()
        assert wait_for(ends)[0] == "process 1 has ended or is cut off"


def test_a_step_that_takes_far_too_long_is_a_loss(ends):
    stop = threading.Event()
    with team() as (leader, other):

        def live() -> None:
            while not stop.wait(0.02):
                other.send(do="live", saved="")

        thread = threading.Thread(target=live)
        thread.start()
        try:
            with leader.step():
                assert wait_for(ends)[0].startswith("a step has taken more than")
        finally:
            stop.set()
            thread.join()


def test_the_end_of_a_run_is_no_loss(ends):
    with team() as (leader, other):
        leader.tell("run", length=3)
        leader.end(0)
        heard = [message["do"] for _ in range(2) if (message := other.receive())]
        assert heard in (["run", "end"], ["live", "run"], ["run", "live"])
        other.close()
        time.sleep(0.5)
        assert ends == []


@pytest.mark.slow
def test_processes_with_other_settings_do_not_train_together(monkeypatch):
    port, refused = free_port(), []
    leading = Seat(2, 0, "127.0.0.1", port)
    until = time.monotonic() + 4

    def lead() -> None:
        try:
            hosts._gathered(leading, until, "ours")
        except LudusError as error:
            refused.append(str(error))

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(LudusError, match=r"hosts.number=1: was started with other settings or versions than process 0"):
        hosts._leader(Seat(2, 1, "127.0.0.1", port), until, "theirs")
    thread.join()
    assert refused == ["hosts.count=2: process 1 has not come in time"]
