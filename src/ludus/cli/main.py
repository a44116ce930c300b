"""The command line. Verbs that train take `key=value`, verbs that read a run take flags.

Nothing heavy is imported before a verb needs it, so that `ludus --help` answers at once.
"""

import contextlib
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence

from ludus import __version__
from ludus.cli import arguments as words
from ludus.cli.arguments import INTERRUPTED, complain
from ludus.runtime.output import Output
from ludus.types import LudusError

USAGE = """\
usage: ludus VERB ...

Train reinforcement-learning agents on any environment.

  train      train an agent          ludus train env=CartPole-v1
  resume     go on with a run        ludus resume RUN total_steps=2e6
  evaluate   play a trained agent    ludus evaluate RUN --episodes 100
  record     demonstrations          ludus record RUN --episodes 100 --out demos.safetensors
  video      film a trained agent    ludus video RUN
  export     for other runtimes      ludus export RUN --format onnx
  runs       list runs               ludus runs
  compare    runs side by side       ludus compare RUN RUN ...
  track      catch trackers up       ludus track RUN
  report     a page of figures       ludus report RUN
  watch      a live page of runs     ludus watch
  push       copy a run elsewhere    ludus push RUN gdrive://Folder
  pull       bring a copy back       ludus pull gdrive://Folder/NAME
  scenarios  sets to train on        ludus scenarios make NAME --count 1000 --out FOLDER
  reward     models of rewards       ludus reward fit --preferences FILE --segments FILE --out MODEL

  verify-resume   prove that a run resumes exactly
  debug           find where a run's first NaN comes from

ludus VERB --help explains a verb; ludus --version tells the version.
"""
VERBS = {
    "train": "train",
    "resume": "train",
    "verify-resume": "verify",
    "debug": "verify",
    "evaluate": "policy",
    "record": "policy",
    "video": "policy",
    "export": "policy",
    "runs": "inspect",
    "compare": "inspect",
    "track": "inspect",
    "report": "inspect",
    "watch": "inspect",
    "push": "storage",
    "pull": "storage",
    "scenarios": "scenarios",
    "reward": "reward",
}
"""The module of each verb, where a function has its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a mistake that the user can mend, 130 after Ctrl-C.

    It does what it was asked to do even if whoever was reading its output has gone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no ± shall not end a run
    outputs = Output(sys.stdout), Output(sys.stderr)
    try:
        with contextlib.redirect_stdout(outputs[0]), contextlib.redirect_stderr(outputs[1]):
            code = _answered(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        for output in outputs:
            output.let_go()
    if arguments is None and words.has_left_work:
        os._exit(code)
    return code


def _answered(given: list[str]) -> int:
    try:
        return _command(given)
    except LudusError as error:
        return complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if given[0] == "--version":
        print(f"ludus {__version__}")
        return 0
    verb, *rest = given
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise LudusError(f"{verb}: no such verb; there are {', '.join(VERBS)}{hint}")
    module = importlib.import_module(f"ludus.cli.{VERBS[verb]}")
    return getattr(module, verb.replace("-", "_"))(rest)
