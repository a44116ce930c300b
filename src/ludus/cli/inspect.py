"""Verbs that show what became of runs: `runs`, `compare`, `report`, `watch` and `track`."""

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.arguments import Parser, add_allow_code, add_key_file, add_run, need_mlflow, newest_run
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.runs.reader import Row


def runs(words: list[str]) -> int:
    """List runs."""
    parser = Parser(
        prog="ludus runs",
        description="List the runs at or below a folder, the one that was written last first: name, environment, "
        "algorithm, steps, best return (of an evaluation) and status. A run is `running` while its process holds "
        "the journal on this machine, `killed` if the process is gone without having said how it ended (ludus resume "
        "goes on with it), and `damaged` if its folder cannot be read. Rows of a journal that have changed since they "
        "were written are counted, and nothing of them is shown.",
        epilog="example: ludus runs sweeps --json | jq '.[] | select(.status == \"killed\") | .name'",
    )
    where = "a folder (default: runs), or the URL of a storage, as in gdrive://Folder"
    parser.add_argument("folder", metavar="RUNS_DIR", nargs="?", default="runs", help=where)
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object for each run")
    add_key_file(parser)
    given = parser.parse_args(words)
    from ludus.report.tables import runs_table
    from ludus.runs.reader import list_runs
    from ludus.runs.storage.options import scheme_of

    if scheme_of(given.folder) is None:
        rows = list_runs(Path(given.folder))
    else:
        rows = _copied_runs(given.folder, given.key_file)
    if given.json:
        print(json.dumps([row.plain() for row in rows], indent=2))
    else:
        print(runs_table(rows) if rows else f"no runs in {given.folder} (ludus train makes one)")
    return 0


def _copied_runs(url: str, key_file: str | None) -> list["Row"]:
    """Return the runs of which there are copies at a place; whether one that has not ended is alive is not known."""
    import tempfile
    from dataclasses import replace

    from ludus.report.tables import shown
    from ludus.runs.reader import list_runs
    from ludus.runs.storage.restore import glance

    with tempfile.TemporaryDirectory() as folder:
        for problem in glance(url, Path(folder), key_file):
            print(f"ludus: {shown(problem)}", file=sys.stderr)
        return [replace(row, status="unended") if row.status == "killed" else row for row in list_runs(Path(folder))]


def compare(words: list[str]) -> int:
    """Show runs side by side."""
    parser = Parser(
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


def report(words: list[str]) -> int:
    """Write a page of figures."""
    parser = Parser(
        prog="ludus report",
        description="Write one HTML file that shows how a run went: the verdict, the score with its interval, and "
        "interactive figures of everything in its journal. It opens from disk and needs no network. Several runs are "
        "drawn over each other, seeds taken together, with what was set differently and a heat map after a sweep. "
        "Where there is a Chromium, or Matplotlib, figures are also written as PNG files beside the page.",
        epilog="example: ludus report runs/pendulum",
    )
    where = "run folders (default: the newest in runs/), or one URL of a copy, as in gdrive://Folder/NAME"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=where)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: RUN/report/index.html, or beside the runs"
    )
    parser.add_argument(
        "--branches", type=int, metavar="N", help="before, play N rollouts from states of an episode, to check values"
    )
    parser.add_argument("--checkpoint", metavar="C", help="with --branches: latest, best or a step (default: final)")
    add_allow_code(parser)
    parser.add_argument("--no-images", action="store_true", help="write the page alone, no PNG files")
    add_key_file(parser)
    given = parser.parse_args(words)
    from ludus.report.html.make import make_report
    from ludus.report.tables import shown
    from ludus.runs.storage.options import scheme_of

    with contextlib.ExitStack() as stack:
        runs, output = [Path(run) for run in given.runs] or [newest_run()], given.output
        if len(given.runs) == 1 and scheme_of(given.runs[0]):
            if given.branches is not None:
                raise LudusError(
                    f"--branches={given.branches}: needs the run's policies; ludus pull {given.runs[0]} first"
                )
            runs = [_copied_run(given.runs[0], given.key_file, stack)]
            output = output or Path(f"{runs[0].name}.html")
        if given.branches is not None:
            from ludus.training.value_check import check_values

            for run in runs:
                print(check_values(run, given.checkpoint, branches=given.branches), flush=True)
        elif given.checkpoint is not None:
            raise LudusError(f"--checkpoint={given.checkpoint}: goes with --branches N, which are played by its policy")
        report = make_report(runs, output)
    print(report.page, flush=True)
    for problem in report.left_out:
        print(f"ludus: {shown(problem)}", file=sys.stderr)
    if not given.no_images:
        try:
            print(f"{len(report.write_images())} figures as PNG in {report.page.parent / 'figures'}")
        except LudusError as error:  # the page is there all the same
            print(f"ludus: no figures as PNG: {error}", file=sys.stderr)
    return 0


def _copied_run(url: str, key_file: str | None, stack: contextlib.ExitStack) -> Path:
    """Bring a copy without its checkpoints and films into a folder that the stack removes."""
    import tempfile

    from ludus.runs.storage.restore import name_in, pull

    run = Path(stack.enter_context(tempfile.TemporaryDirectory())) / name_in(url)
    pull(url, run, key_file, lambda path: not path.startswith(("checkpoints/", "videos/", "policies/")))
    return run


def watch(words: list[str]) -> int:
    """Serve a live page of runs."""
    parser = Parser(
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

    from ludus.report.live.auth import is_loopback
    from ludus.report.live.server import watch

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


def track(words: list[str]) -> int:
    """Bring trackers up to date."""
    parser = Parser(
        prog="ludus track",
        description="Bring TensorBoard's files, MLflow and your own trackers up to date with a run, after a crash, an "
        "outage, or because it was not sent before: MLflow at MLFLOW_TRACKING_URI, if that is set, else at mlflow.db "
        "beside the run folder.",
    )
    add_run(parser)
    add_allow_code(parser)
    given = parser.parse_args(words)
    from ludus.runs.folder import read_config, trackers_of
    from ludus.runs.trackers.registry import complete_own
    from ludus.runs.trackers.tensorboard import complete
    from ludus.runtime import files

    run = given.run or newest_run()
    files.refuse_links(run)
    wanted = trackers_of(read_config(run))
    if wanted.get("tensorboard", True):
        print(f"TensorBoard: {complete(run, print):,} rows were written to {run / 'tensorboard'}")
    for name, rows in complete_own(run, wanted.get("own")).items():
        print(f"tracker {name}: has all {rows:,} rows")
    is_shown = wanted.get("tensorboard", True) or wanted.get("own")
    if importlib.util.find_spec("mlflow") is not None or wanted.get("mlflow") or not is_shown:
        need_mlflow("ludus track")
        from ludus.training.tracking_process import track

        print(track(run))
    return 0
