"""The command line. Verbs that train take `key=value`, verbs that read a run take flags.

Nothing heavy is imported before a verb needs it, so that `ludus --help` answers at once.
"""

import argparse
import contextlib
import difflib
import importlib.util
import io
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ludus import __version__
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.config import TrainConfig
    from ludus.evaluation import Evaluation
    from ludus.policy import Policy
    from ludus.trainer import Trainer, TrainResult

USAGE = """\
usage: ludus VERB ...

Train reinforcement-learning agents on any environment.

  train      train an agent          ludus train env=CartPole-v1
  resume     go on with a run        ludus resume RUN total_steps=2e6
  evaluate   play a trained agent    ludus evaluate RUN --episodes 100
  video      film a trained agent    ludus video RUN
  export     for other runtimes      ludus export RUN --format onnx
  runs       list runs               ludus runs
  compare    runs side by side       ludus compare RUN RUN ...
  track      catch trackers up       ludus track RUN
  report     a page of figures       ludus report RUN
  watch      a live page of runs     ludus watch

  verify-resume   prove that a run resumes exactly
  debug           find where a run's first NaN comes from

ludus VERB --help explains a verb; ludus --version tells the version.
"""
TRAIN_USAGE = """\
usage: ludus train env=ID [key=value ...] [-m]

Train an agent. With -m a key may hold several values; every combination is a run of its own.

examples:
  ludus train env=CartPole-v1
  ludus train env=CartPole-v1 algorithm=ppo seed=0 algorithm.learning_rate=1e-3 run_dir=runs/first
  ludus train env=Acrobot-v1 total_steps=2e6 algorithm.network.hidden_sizes=[64,128,256]
  ludus train env=gym:LunarLander-v3 algorithm/network=gru algorithm.network.memory_size=128
  ludus train env=CartPole-v1 -m seed=1,2,3 algorithm.gamma=0.98,0.99
"""
INTERRUPTED = 130
SIGNALLED = {"interrupt": INTERRUPTED, "SIGTERM": 143, "SIGUSR1": 138}
"""Exit codes of a run that a signal ended and that is saved: 128 and the signal's number."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a mistake that the user can mend, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no ± shall not end a run
    try:
        return _command(list(sys.argv[1:] if arguments is None else arguments))
    except LudusError as error:
        return _complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever was reading has gone; nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _command(words: list[str]) -> int:
    verbs = {
        "train": _train,
        "resume": _resume,
        "verify-resume": _verify_resume,
        "debug": _debug,
        "evaluate": _evaluate,
        "video": _video,
        "export": _export,
        "runs": _runs,
        "compare": _compare,
        "track": _track,
        "report": _report,
        "watch": _watch,
    }
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"ludus {__version__}")
        return 0
    if words[0] not in verbs:
        close = difflib.get_close_matches(words[0], verbs, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise LudusError(f"{words[0]}: no such verb; there are {', '.join(verbs)}{hint}")
    return verbs[words[0]](words[1:])


def _complain(error: LudusError) -> int:
    notes = getattr(error, "__notes__", [])  # such as the traceback of a worker process
    print(f"ludus: {' '.join(str(error).splitlines())}", *notes, sep="\n", file=sys.stderr)
    return 2


def _train(words: list[str]) -> int:
    from ludus.config import combinations, compose, help_text

    flags = {word for word in words if word in ("-h", "--help", "-m", "--multirun")}
    overrides = [word for word in words if word not in flags]
    if flags & {"-h", "--help"}:
        print(f"{TRAIN_USAGE}\n{help_text()}")
        return 0
    runs = combinations(overrides) if flags else {"": overrides}
    configs = {name: _placed(compose(words), name) for name, words in runs.items()}
    return _sweep(configs) if len(configs) > 1 else _run(*configs.values())[0]


def _trainer(config: "TrainConfig", run_dir: str | Path | None) -> tuple["Trainer", dict[str, Any]]:
    from ludus.config import build
    from ludus.trainer import Trainer

    parts = build(config)
    return Trainer(parts.algorithm, parts.env, run_dir=run_dir, **parts.options), parts.budget


def _run(config: "TrainConfig") -> tuple[int, "TrainResult"]:
    """Train once; return the exit code and what was reached."""
    if config.log_frequency:
        from loguru import logger

        logger.remove()  # here the block of statistics says it all; who imports ludus has sinks of their own
    trainer, budget = _trainer(config, config.run_dir or _new_folder(config))
    if config.preset:
        trainer.record.console.say(f"preset {config.preset}")
    with contextlib.closing(trainer.env):
        result = trainer.train(**budget)
    print(result, flush=True)
    return SIGNALLED.get(result.stopped_by, 0), result


def _resume(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus resume",
        usage="ludus resume [RUN] [--from latest|best|STEP] [--fallback] [key=value ...]",
        description="Go on with a run from one of its checkpoints, on the same curves and in the same journal. "
        "Keys that do not change what the saved state means can be given other values, such as total_steps=2e6.",
    )
    parser.add_argument("words", nargs="*", metavar="RUN", help="run folder (default: the newest in runs/)")
    parser.add_argument("--from", dest="start", default="latest", metavar="STEP", help="latest, best or a step")
    parser.add_argument("--fallback", action="store_true", help="if the checkpoint is damaged, take the one before")
    given = parser.parse_intermixed_args(words)
    from ludus.config import changes
    from ludus.trainer import Trainer

    run, rest = _split_run(given.words)
    values = changes(rest)
    trainer = Trainer.resume(run, given.start, fallback=given.fallback, **values)
    with contextlib.closing(trainer.env):
        result = trainer.train()
    print(result, flush=True)
    return SIGNALLED.get(result.stopped_by, 0)


def _split_run(words: list[str]) -> tuple[Path, list[str]]:
    """Return the run folder, which may come first, and the words that say key=value."""
    is_named = bool(words) and ("=" not in words[0] or Path(words[0]).is_dir())
    return (Path(words[0]), words[1:]) if is_named else (_newest_run(), words)


def _verify_resume(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus verify-resume",
        description="Train 2n iterations with a run's own configuration, and n with n more after a resume in a fresh "
        "process; print the hashes of both, and exit with 1 if they differ. The run itself is left alone.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    parser.add_argument("--iterations", type=int, default=3, metavar="N", help="the n (default: 3)")
    given = parser.parse_args(words)
    if given.iterations < 1:
        raise LudusError(f"--iterations={given.iterations}: must be at least 1")
    from ludus.verify import verify_resume

    comparison = verify_resume(given.run or _newest_run(), given.iterations)
    print(comparison)
    return 0 if comparison.first_difference is None else 1


def _debug(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus debug",
        description="Play a run again from a checkpoint, update by update, to its first NaN or infinity; name it and "
        "write the batch beside the run. The run itself is left alone.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    parser.add_argument("--from", dest="start", default="latest", metavar="STEP", help="latest, best or a step")
    parser.add_argument("--iterations", type=int, default=1000, metavar="N", help="look at so many (default: 1000)")
    given = parser.parse_args(words)
    from ludus.verify import debug

    finding = debug(given.run or _newest_run(), given.start, given.iterations)
    print(finding or f"no NaN or infinity in {given.iterations} iterations")
    return 0 if finding is None else 1


def _sweep(configs: dict[str, "TrainConfig"]) -> int:
    """Train with each configuration; one that fails while it runs does not stop the others."""
    for config in configs.values():
        _check(config)
    code, rows = 0, [("run", "return", "steps", "folder")]
    for name, config in configs.items():
        if config.verbose:
            print(f"[{len(rows)}/{len(configs)}] {name}", file=sys.stderr)
        try:
            code_now, result = _run(config)
        except LudusError as error:
            code, row = _complain(error), ("failed", "", config.run_dir or "")
        else:
            code, row = code_now or code, _reached(result)
        rows.append((name, *row))
        if code in SIGNALLED.values():
            break
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), sep="\n")
    return code


def _check(config: "TrainConfig") -> None:
    """Refuse what cannot run before the first run of a sweep begins."""
    folder = Path(config.run_dir or "runs")
    if config.run_dir and folder.exists():
        raise LudusError(f"run_dir={folder}: exists already; choose another folder or remove it")
    if not os.access(next(path for path in folder.absolute().parents if path.exists()), os.W_OK | os.X_OK):
        raise LudusError(f"run_dir={folder}: cannot be written")
    _trainer(config, None)[0].env.close()


def _reached(result: "TrainResult") -> tuple[str, str, str]:
    summary = result.evaluation.summary() if result.evaluation else None
    reached = f"{summary['mean_return']:.2f} ± {summary['std_return']:.2f}" if summary else result.stopped_by
    return reached, f"{result.steps:,}", str(result.run_dir)


def _placed(config: "TrainConfig", name: str) -> "TrainConfig":
    """Give each run of a sweep a folder of its own inside `run_dir`."""
    if config.run_dir is None or not name:
        return config
    return replace(config, run_dir=str(Path(config.run_dir) / re.sub(r"[^\w.,=+-]+", "-", name)))


def _new_folder(config: "TrainConfig") -> Path:
    env = re.sub(r"[^\w.+-]+", "-", config.env.rpartition(":")[2])
    stem = f"{env}-{config.algorithm['name']}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{count}" for count in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


class _Parser(argparse.ArgumentParser):
    """Speaks of mistakes in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        raise LudusError(f"{message} ({self.prog} --help explains all)")


def _newest_run() -> Path:
    runs = [path.parent for path in Path("runs").glob("*/run.json")]
    if not runs:
        raise LudusError("no RUN given and none in runs/ (ludus train makes one)")
    return max(runs, key=lambda run: (run / "run.json").stat().st_mtime)


def _evaluate(words: list[str]) -> int:
    parser = _Parser(prog="ludus evaluate", description="Play greedy episodes with the final policy of a run.")
    where = "run folder (default: the newest in runs/), or a model that MLflow knows, such as models:/NAME@champion"
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help=where)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides how each begins (default: 0)")
    parser.add_argument("--env", metavar="ID", help="play elsewhere than where it was trained")
    parser.add_argument("--checkpoint", metavar="STEP", help="latest, best or a step, instead of the final policy")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table of the episodes")
    given = parser.parse_args(words)
    from ludus.evaluation import evaluate

    run = given.run or _newest_run()
    policy, config = _policy(run, given.checkpoint)
    with contextlib.closing(_environment(run, config, given.env)) as env:
        evaluation = evaluate(policy, env, given.episodes, given.seed)
    if given.csv is not None:
        _write_episodes(given.csv, evaluation)
    print(json.dumps(evaluation.summary()) if given.json else evaluation)
    return 0


def _write_episodes(path: Path, evaluation: "Evaluation") -> None:
    import csv

    try:
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["episode", "return", "length"])
            pairs = zip(evaluation.returns.tolist(), evaluation.lengths.tolist(), strict=True)
            table.writerows([number, *pair] for number, pair in enumerate(pairs))
    except OSError as error:
        raise LudusError(f"--csv={path}: cannot be written ({error.strerror})") from error


def _policy(run: Path, checkpoint: str | None) -> tuple["Policy", dict[str, Any]]:
    """Return the final policy of a run, that of a checkpoint or a registered one, and its configuration."""
    from ludus.policy import load_policy
    from ludus.tracking.run_folder import read_config

    if str(run).startswith("models:"):
        if checkpoint is not None:
            raise LudusError(f"--checkpoint={checkpoint}: {run} is a registered model, which has none")
        _need_mlflow(str(run))
        from ludus.publish import fetch

        return fetch(str(run), Path("runs"))
    config = read_config(run)
    if checkpoint is None:
        return load_policy(run), config
    from ludus.resume import policy_at

    return policy_at(run, checkpoint), config


def _need_mlflow(what: str) -> None:
    if importlib.util.find_spec("mlflow") is None:
        raise LudusError(f'{what}: MLflow is not installed; pip install "ludus[mlflow]"')


def _environment(run: Path, config: dict[str, Any], env: str | None = None) -> Any:
    """Make the environments of a run, or others instead."""
    from ludus.envs.registry import WORKER_KEYS, make_env

    env_id, options = (env, {}) if env else (str(config.get("env")), config.get("env_options") or {})
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise LudusError(f"{run}: env_options in its config.yaml must be names and values, got {options!r}")
    if env_id.startswith("object:"):
        raise LudusError(f"{run}: {env_id} is a Python object; use ludus.evaluate in Python, or give --env")
    workers = {} if env else {name: config[name] for name in WORKER_KEYS if name in config}
    return make_env(env_id, config.get("num_envs") or 1, **{**options, **workers})


def _video(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus video",
        description="Let a policy of a run play and film it: RUN/videos has the film (mp4) and what was drawn on each "
        "of its frames (jsonl), RUN/episodes the episode itself.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    parser.add_argument(
        "--checkpoint", metavar="C", help="latest, best, a step or a name in RUN/policies (default: the final policy)"
    )
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="film so many (default: 1)")
    parser.add_argument("--extremes", action="store_true", help="film the worst and the best of N instead (100)")
    parser.add_argument("--grid", action="store_true", help="film the policies of the run side by side, as it learned")
    parser.add_argument("--gif", action="store_true", help="make a gif besides")
    parser.add_argument("--seed", type=int, metavar="N", help="decides how each begins (default: the run's own)")
    given = parser.parse_args(words)
    if given.episodes < 1:
        raise LudusError(f"--episodes={given.episodes}: must be at least 1")
    if given.seed is not None and given.seed < 0:
        raise LudusError(f"--seed={given.seed}: must be at least 0")
    from ludus.filming import film, film_grid, headless

    headless()
    run = given.run or _newest_run()
    if given.grid:
        film_grid(run, seed=given.seed, gif=given.gif)
    else:
        many = 100 if given.episodes == 1 else given.episodes
        among = many if given.extremes else 0
        film(run, given.checkpoint, episodes=given.episodes, among=among, seed=given.seed, gif=given.gif)
    return 0


def _export(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus export", description="Write a policy of a run for another runtime, and prove it there."
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    parser.add_argument("--format", required=True, metavar="F", help="safetensors, torch, onnx or stablehlo")
    parser.add_argument("--policy", default="final", metavar="P", help="final, best or a file of RUN/policies")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to (default: RUN/exports/POLICY)")
    given = parser.parse_args(words)
    from ludus.critic import FINAL as CRITIC
    from ludus.critic import load_critic
    from ludus.export import export_policy
    from ludus.policy import BEST, FINAL, load_policy
    from ludus.tracking.run_folder import read_config

    run = given.run or _newest_run()
    config = read_config(run)
    file = run / {"final": FINAL, "best": BEST}.get(given.policy, Path("policies") / given.policy)
    policy = load_policy(file)
    critic = load_critic(run) if given.policy == "final" and (run / CRITIC).exists() else None
    try:
        env = _environment(run, config)
    except LudusError as error:  # an environment that is not here shall not keep a policy from travelling
        print(f"ludus: compared on observations drawn from their space, since {error}", file=sys.stderr)
        env = None
    folder = given.output or run / "exports" / file.stem
    with contextlib.closing(env) if env else contextlib.nullcontext():
        print(export_policy(policy, given.format, folder, critic=critic, env=env, name=file.stem))
    return 0


def _runs(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus runs",
        description="List the runs at or below a folder, the one that was written last first: name, environment, "
        "algorithm, steps, best return (of an evaluation) and status. A run is `running` while its process holds "
        "the journal on this machine, `killed` if the process is gone without having said how it ended (ludus resume "
        "goes on with it), and `damaged` if its folder cannot be read.",
        epilog="example: ludus runs sweeps --json | jq '.[] | select(.status == \"killed\") | .name'",
    )
    parser.add_argument("folder", metavar="RUNS_DIR", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object for each run")
    given = parser.parse_args(words)
    from ludus.report.run import list_runs
    from ludus.report.tables import runs_table

    rows = list_runs(given.folder)
    if given.json:
        print(json.dumps([row.plain() for row in rows], indent=2))
    else:
        print(runs_table(rows) if rows else f"no runs in {given.folder} (ludus train makes one)")
    return 0


def _compare(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus compare",
        description="Show in which settings runs differ and what came of it. Runs that differ in nothing but the seed "
        "are taken together: the interquartile mean (the mean of the middle half) of each figure over seeds, with a "
        "95% stratified bootstrap interval, as Agarwal et al. 2021 recommend.",
        epilog="example: ludus compare runs/gamma-0.98-seed* runs/gamma-0.99-seed*",
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="two run folders or more")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    from ludus.report.comparison import compare
    from ludus.report.tables import comparison_table

    comparison = compare(given.runs)
    print(json.dumps(comparison.plain(), indent=2) if given.json else comparison_table(comparison))
    return 0


def _track(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus track",
        description="Bring TensorBoard's files and MLflow up to date with a run, after a crash, an outage, or because "
        "it was not sent before: to MLFLOW_TRACKING_URI, if that is set, else to mlflow.db beside the run folder.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    given = parser.parse_args(words)
    from ludus.tracking.run_folder import read_config
    from ludus.tracking.tensorboard import complete

    run = given.run or _newest_run()
    wanted = read_config(run).get("tracking") or {}
    if wanted.get("tensorboard", True):
        print(f"TensorBoard: {complete(run):,} rows were missing in {run / 'tensorboard'}")
    if importlib.util.find_spec("mlflow") is not None or wanted.get("mlflow") or not wanted.get("tensorboard", True):
        _need_mlflow("ludus track")
        from ludus.track import track

        print(track(run))
    return 0


def _report(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus report",
        description="Write one HTML file that shows how a run went: the verdict, the score with its interval, and "
        "interactive figures of everything in its journal. It opens from disk and needs no network. Several runs are "
        "drawn over each other, seeds taken together, with what was set differently and a heat map after a sweep. "
        "Where there is a Chromium, figures are also written as PNG files beside the page.",
        epilog="example: ludus report runs/pendulum",
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="*", help="run folders (default: the newest in runs/)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: RUN/report/index.html, or beside the runs"
    )
    parser.add_argument("--no-images", action="store_true", help="write the page alone, no PNG files")
    given = parser.parse_args(words)
    from ludus.report.make import make_report

    report = make_report(given.runs or [_newest_run()], given.output)
    print(report.page, flush=True)
    if not given.no_images:
        try:
            print(f"{len(report.write_images())} figures as PNG in {report.page.parent / 'figures'}")
        except LudusError as error:  # the page is there all the same
            print(f"ludus: no figures as PNG: {error}", file=sys.stderr)
    return 0


def _watch(words: list[str]) -> int:
    parser = _Parser(
        prog="ludus watch",
        description="Serve a live page of the runs at or below a folder, for this machine alone: curves, newest video, "
        "log, use of processor and memory, and a button that lets a run save and stop. Open the address it prints.",
        epilog="example: ludus watch runs --port 8700",
    )
    parser.add_argument("folder", metavar="RUNS_DIR", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    parser.add_argument("--port", type=int, metavar="N", help="default: the first free one from 8642 on")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="listen on another address than 127.0.0.1")
    given = parser.parse_args(words)
    if not given.folder.is_dir():
        raise LudusError(f"{given.folder}: is not a folder; give the one that holds your runs, or make it first")
    if given.port is not None and not 0 <= given.port <= 65535:
        raise LudusError(f"--port={given.port}: must be between 0 (any free one) and 65535")
    import asyncio

    from ludus.watch.gate import is_loopback
    from ludus.watch.server import watch

    if not is_loopback(given.host):
        print(
            f"ludus: WARNING: --host={given.host} lets other machines reach this page, unencrypted; whoever has the "
            "address with its token sees every run and can stop it",
            file=sys.stderr,
        )
    asyncio.run(
        watch(
            given.folder, given.host, given.port, lambda where: print(f"watching {given.folder}: {where}", flush=True)
        )
    )
    return 0
