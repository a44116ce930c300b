"""Shared by the verbs: a parser that speaks in one line, the run that is meant, and exit codes."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import NoReturn

from ludus.runtime import secrets, user_code
from ludus.types import LudusError

INTERRUPTED = 130
SIGNALLED = {"interrupt": INTERRUPTED, "SIGTERM": 143, "SIGUSR1": 138, "SIGHUP": 129}
"""Exit codes of a run that a signal ended and that is saved: 128 and the signal's number."""

has_left_work: bool = False
"""Whether a program was left running that nobody waits for: the process then ends without it."""


class Parser(argparse.ArgumentParser):
    """Speaks of mistakes in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        """Raise what `main` says in one line."""
        raise LudusError(f"{message} ({self.prog} --help explains all)")


def add_run(parser: Parser) -> None:
    """Let a verb take a run folder."""
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")


def add_key_file(parser: Parser) -> None:
    """Let a verb that goes to a storage be told of credentials."""
    parser.add_argument("--key-file", metavar="FILE", help="JSON file of a Google service account or OAuth token")


def add_allow_code(parser: Parser) -> None:
    """Let a verb follow names of code that a run holds and its user has not used before."""
    parser.add_argument("--allow-code", action=_AllowCode, nargs=0, help="import the code that the run names")


class _AllowCode(argparse.Action):
    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        user_code.allow()


def newest_run() -> Path:
    """Return the run that was begun or ended last."""
    runs = [path.parent for path in Path("runs").glob("*/run.json")]
    if not runs:
        raise LudusError("no RUN given and none in runs/ (ludus train makes one)")
    return max(runs, key=lambda run: (run / "run.json").stat().st_mtime)


def complain(error: LudusError) -> int:
    """Say what went wrong in one line; return the exit code."""
    notes = getattr(error, "__notes__", [])  # such as the traceback of a worker process
    said = "\n".join([f"ludus: {' '.join(str(error).splitlines())}", *notes])
    print(secrets.hidden(said), file=sys.stderr)
    return 2


def need_mlflow(what: str) -> None:
    """Refuse something that cannot be done without MLflow."""
    if importlib.util.find_spec("mlflow") is None:
        raise LudusError(f'{what}: MLflow is not installed; pip install "ludus[mlflow]"')
