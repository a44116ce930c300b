"""Verbs that train: `train`, with its sweeps, and `resume`."""

import contextlib
import itertools
import os
import re
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.cli import arguments as words
from ludus.cli import hosts
from ludus.cli.arguments import SIGNALLED, Parser, add_allow_code, complain, newest_run
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.training.config import TrainConfig
    from ludus.training.trainer import Trainer, TrainResult

TRAIN_USAGE = """\
usage: ludus train env=ID [key=value ...] [-m] [--config FILE] [--config-dir FOLDER] [--allow-code]

Train an agent. With -m a key may hold several values; every combination is a run of its own.
--config lays a YAML file of such keys under the words; --config-dir holds groups of your own, chosen by name like
ours: FOLDER/algorithm/network/big.yaml by algorithm/network=big, FOLDER/preset/mine.yaml by preset=mine.

examples:
  ludus train env=CartPole-v1
  ludus train env=CartPole-v1 algorithm=ppo seed=0 algorithm.learning_rate=1e-3 run_dir=runs/first
  ludus train env=Acrobot-v1 total_steps=2e6 algorithm.network.hidden_sizes=[64,128,256]
  ludus train env=gym:LunarLander-v3 algorithm/network=gru algorithm.network.memory_size=128
  ludus train env=CartPole-v1 -m seed=1,2,3 algorithm.gamma=0.98,0.99
  ludus train --config my.yaml seed=3
"""


def train(words: list[str]) -> int:
    """Train an agent, or one for each combination of a sweep."""
    from ludus.training.config import compose, help_text
    from ludus.training.config_files import OwnFiles
    from ludus.training.config_words import combinations
    from ludus.training.distributed import mesh

    parser = Parser(prog="ludus train", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--config", type=Path, action="append", default=[])
    parser.add_argument("--config-dir", type=Path)
    add_allow_code(parser)
    given, overrides = parser.parse_known_args(words)
    if given.help:
        print(f"{TRAIN_USAGE}\n{help_text()}")
        return 0
    own = OwnFiles(given.config, given.config_dir)
    runs = combinations(overrides) if given.multirun else {"": overrides}
    configs = {name: _placed(compose(words, own), name) for name, words in runs.items()}
    follows = [hosts.join(config, is_alone=len(configs) == 1) for config in configs.values()]
    for config in configs.values():
        mesh.ask_for(config.devices)
    if any(follows):
        return hosts.follow(*configs.values())
    return _sweep(configs) if len(configs) > 1 else _run(*configs.values())[0]


def resume(words: list[str]) -> int:
    """Go on with a run."""
    parser = Parser(
        prog="ludus resume",
        usage="ludus resume [RUN or URL] [--from latest|best|STEP] [--fallback] [--allow-code] [key=value ...]",
        description="Go on with a run from one of its checkpoints, on the same curves and in the same journal. "
        "Keys that do not change what the saved state means can be given other values, such as total_steps=2e6. The "
        "URL or folder of a copy, as in gdrive://Folder/NAME, is first restored into runs/NAME.",
    )
    parser.add_argument("words", nargs="*", metavar="RUN", help="run folder (default: the newest in runs/)")
    parser.add_argument("--from", dest="start", default="latest", metavar="STEP", help="latest, best or a step")
    add_allow_code(parser)
    parser.add_argument("--fallback", action="store_true", help="go on with what is whole, if something is damaged")
    given = parser.parse_intermixed_args(words)
    from ludus.runs.folder import read_config, read_identity
    from ludus.runs.storage.restore import is_copy
    from ludus.runtime import autotuning
    from ludus.training.config import changes
    from ludus.training.distributed.hosts import joined, led
    from ludus.training.run_config import changed
    from ludus.training.trainer import Trainer

    run, rest = _split_run(given.words)
    values = changes(rest)
    if not isinstance(run, Path) or is_copy(run):
        run = hosts.restored(str(run), values)
    config = changed(read_config(run), dict(values))
    if hosts.rejoin(run, config):
        return hosts.follow_resumed(run, config)
    with contextlib.suppress(*[LudusError] * given.fallback):
        if joined() is None:  # else JAX runs already
            autotuning.go_on(run, read_identity(run), read_config(run))
    with led() as note:
        trainer = Trainer.resume(run, given.start, fallback=given.fallback, **values)
        note(lambda: hosts.saved(run))
        with contextlib.closing(trainer.env):
            result = trainer.train()
    return _told(result, trainer.retreat.was_used)


def _trainer(config: "TrainConfig", run_dir: str | Path | None) -> tuple["Trainer", dict[str, Any]]:
    from ludus.runtime import autotuning
    from ludus.training.config import build
    from ludus.training.distributed.hosts import joined
    from ludus.training.trainer import Trainer

    if joined() is None:  # else JAX runs already
        autotuning.begin(asdict(config), config.deterministic)
    parts = build(config)
    return Trainer(parts.algorithm, parts.env, parts.settings, run_dir=run_dir), parts.budget


def _run(config: "TrainConfig") -> tuple[int, "TrainResult"]:
    """Train once; return the exit code and what was reached."""
    from ludus.training.distributed.hosts import led

    with led() as note:
        trainer, budget = _trainer(config, config.run_dir or _new_folder(config))
        note(lambda: hosts.saved(trainer.writer.run_dir))
        trainer.configured_by = config.sources
        if made_of := [*([f"preset {config.preset}"] if config.preset else []), *config.sources]:
            trainer.record.console.say(" · ".join(made_of))
        with contextlib.closing(trainer.env):
            result = trainer.train(**budget)
    return _told(result, trainer.retreat.was_used), result


def _told(result: "TrainResult", has_left_work: bool) -> int:
    """Say what was reached, and return the exit code; `has_left_work` says that a program was left running."""
    print(result, flush=True)
    words.has_left_work |= has_left_work
    return SIGNALLED.get(result.stopped_by, 0)


def _split_run(words: list[str]) -> tuple[Path | str, list[str]]:
    """Return the run folder, or the URL of a copy, which may come first, and the words that say key=value."""
    from ludus.runs.storage.options import scheme_of

    if words and scheme_of(words[0]) is not None:
        return words[0], words[1:]
    is_named = bool(words) and ("=" not in words[0] or Path(words[0]).is_dir())
    return (Path(words[0]), words[1:]) if is_named else (newest_run(), words)


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
            code, row = complain(error), ("failed", "", config.run_dir or "")
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
    stem = f"{env}-{config.algorithm['name'].rpartition(':')[2]}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{count}" for count in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())
