"""The GPU kernels of a run: written down, read again, checked. benchmarks/gpu_kills.py tries whether XLA obeys."""

import hashlib

import pytest

from ludus.runtime import autotuning
from ludus.types import LudusError

CONFIG = {"env": "CartPole-v1", "seed": 0, "run_dir": "runs/one", "num_envs": 4}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A process that will start JAX on a GPU: what would start it is noted instead."""
    started = []

    def start(choices, *flags):
        started.append(flags)
        autotuning._process, autotuning._has_started = choices, True

    monkeypatch.setattr(autotuning, "_process", None)
    monkeypatch.setattr(autotuning, "_has_started", False)
    monkeypatch.setattr(autotuning, "will_use_gpu", lambda: True)
    monkeypatch.setattr(autotuning, "_start", start)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return started


def another_process():
    autotuning._process, autotuning._has_started = None, False


def measured(config, run):
    """Let a process choose its kernels and keep them in a run folder; return what run.json says of them."""
    autotuning.begin(config)
    autotuning._process.file.write_bytes(b"chosen")
    run.mkdir()
    return autotuning.keep(run)


def test_choices_are_kept_in_the_run_folder_and_read_by_whoever_goes_on(gpu, tmp_path):
    run = tmp_path / "run"
    noted = measured(CONFIG, run)
    digest = hashlib.sha256(b"chosen").hexdigest()
    assert noted == {"how": "measured", "sha256": digest}
    assert (run / "autotuning" / digest).read_bytes() == b"chosen"
    assert (run / "autotuning" / digest).stat().st_mode & 0o777 == 0o600
    another_process()
    autotuning.go_on(run, {"autotuning": noted}, CONFIG)
    (flag,) = gpu[-1]
    assert flag.startswith(f"{autotuning.READ}=") and flag.endswith(digest)
    assert autotuning.is_known(noted)
    assert autotuning.keep(run) == {"how": "read", "sha256": digest}


def test_what_was_compiled_later_is_kept_too(gpu, tmp_path):
    run = tmp_path / "run"
    first = measured(CONFIG, run)
    autotuning._process.file.write_bytes(b"chosen and more")
    assert autotuning.keep(run)["sha256"] == hashlib.sha256(b"chosen and more").hexdigest() != first["sha256"]


@pytest.mark.parametrize(("change", "same"), [({"seed": 1, "run_dir": "x"}, True), ({"num_envs": 8}, False)])
def test_a_new_run_reads_what_an_earlier_one_of_the_same_programs_chose(gpu, tmp_path, change, same):
    measured(CONFIG, tmp_path / "run")
    another_process()
    autotuning.begin(CONFIG | change)
    assert gpu[-1][0].startswith(autotuning.READ if same else autotuning.WRITE)


def test_a_measuring_process_takes_no_compiled_program_of_another(gpu):
    paths = set()
    for _ in range(2):
        autotuning.begin(CONFIG)
        paths.add(gpu[-1])
        another_process()
    assert len(paths) == 2  # the flag is part of the cache's keys


def test_a_sweep_goes_on_to_programs_whose_choices_are_not_known(gpu, tmp_path):
    measured(CONFIG, tmp_path / "run")
    another_process()
    autotuning.begin(CONFIG)
    autotuning.begin(CONFIG | {"seed": 5})
    assert autotuning.keep(tmp_path / "run") is not None
    autotuning.begin(CONFIG | {"num_envs": 8})
    assert autotuning.keep(tmp_path / "run") is None
    assert len(gpu) == 2


@pytest.mark.parametrize("damage", [b"other", None])
def test_damaged_choices_are_refused_by_name(gpu, tmp_path, damage):
    run = tmp_path / "run"
    noted = measured(CONFIG, run)
    (file,) = (run / "autotuning").iterdir()
    file.unlink() if damage is None else file.write_bytes(damage)
    another_process()
    with pytest.raises(LudusError, match=file.name):
        autotuning.go_on(run, {"autotuning": noted}, CONFIG)
    assert not autotuning.is_known(noted)


@pytest.mark.parametrize("noted", [None, 3, {"how": "measured", "sha256": "0" * 64}, {"how": "deterministic"}])
def test_where_jax_runs_already_nothing_is_known(gpu, tmp_path, noted):
    assert not autotuning.is_known(noted)
    assert autotuning.keep(tmp_path) is None


def test_names_that_lead_elsewhere_are_refused(gpu, tmp_path):
    with pytest.raises(LudusError, match="damaged"):
        autotuning.go_on(tmp_path, {"autotuning": {"how": "measured", "sha256": "../secret"}}, CONFIG)
    assert not gpu


def test_deterministic_runs_choose_nothing(gpu, tmp_path):
    autotuning.begin(CONFIG, deterministic=True)
    assert gpu == [(f"{autotuning.DETERMINISTIC}=true",)]
    noted = autotuning.keep(tmp_path)
    assert noted == {"how": "deterministic", "sha256": None}
    another_process()
    autotuning.go_on(tmp_path, {"autotuning": noted}, CONFIG)
    assert gpu[-1] == gpu[0] and autotuning.is_known(noted)


def test_flags_of_the_user_are_obeyed(gpu, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{autotuning.DETERMINISTIC}=true")
    autotuning.begin(CONFIG)
    assert not gpu


def test_a_cpu_needs_none_of_this(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not autotuning.will_use_gpu()
    assert autotuning.is_deterministic()


@pytest.mark.parametrize("noted", [None, {"how": "measured", "sha256": None}])
def test_a_run_whose_choices_were_lost_writes_them_down_from_then_on(gpu, tmp_path, noted):
    autotuning.go_on(tmp_path, {"autotuning": noted}, CONFIG)
    assert autotuning.is_measuring() and gpu[-1][0].startswith(autotuning.WRITE)
    assert not autotuning.is_known(noted)
    assert autotuning.keep(tmp_path) is None  # nothing is compiled yet
