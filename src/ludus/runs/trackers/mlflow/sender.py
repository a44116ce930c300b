"""Bringing MLflow up to date with a run folder: every row arrives, and arrives once."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from ludus import __version__
from ludus.runs.folder import CONFIG, IDENTITY, begun, is_training, read_config, read_identity, trackers_of
from ludus.runs.journal import JOURNAL, JournalReader, TakenBackError
from ludus.runs.limits import name_of
from ludus.runs.trackers.cursor import Batch, Cursor, CursorFiles, DivergedError, digest
from ludus.runs.trackers.mlflow.names import LoggedMetric, Translator, default_experiment, parameters
from ludus.runs.trackers.mlflow.store import RUN_ID, Found, Store, StoreError

BATCH_METRICS = 900
"""A batch is closed as soon as it has so many points: most need one request."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "KILLED"}
"""What MLflow calls the ways in which a run can stand when nobody trains it any more."""
CONTINUES, SUPERSEDED = "ludus.continues", "ludus.superseded_by"
PLACES = {
    CONFIG: "",
    IDENTITY: "",
    "report/performance_report.json": "performance_analysis",
    "report/training_summary.json": "dashboard",
}
"""Where files of a run folder lie in MLflow, if not in a folder of the same name."""
FIGURES = PurePath("report", "figures")
"""Pictures lie at the top in MLflow, under the names that users of the founding documents know."""
FOLDERS = ("policies", "report", "videos")


def place_of(path: PurePath) -> str:
    """Return the folder of MLflow into which a file of a run folder goes; "" is the top one."""
    parent = path.parent.relative_to(FIGURES) if path.is_relative_to(FIGURES) else path.parent
    folder = PLACES.get(path.as_posix(), parent.as_posix())
    return "" if folder == "." else folder


class Sender:
    """Sends one run folder to MLflow. Whatever is wrong there becomes a `StoreError`; all can be called again then."""

    def __init__(self, run: Path, connect: Callable[[Path], Store] = Store):
        """Read what the run is; speak to nobody yet."""
        self.run = run
        self.config, self.identity = read_config(run), read_identity(run)
        self.files = CursorFiles(run)
        self._connect = connect
        self._store: Store | None = None
        self._cursor: Cursor | None = None
        self._sent: list[str] = []
        self._begin_again(0)

    @property
    def store(self) -> Store:
        """MLflow."""
        if self._store is None:
            self._store = self._connect(self.run.absolute().parent)
        return self._store

    @property
    def cursor(self) -> Cursor:
        """The place where the rows go."""
        assert self._cursor is not None, "open() finds out"
        return self._cursor

    @property
    def experiment(self) -> str:
        """The name of MLflow's experiment."""
        return str(trackers_of(self.config).get("experiment") or default_experiment(self.config))

    @property
    def arrived(self) -> int:
        """The number of rows that MLflow has."""
        return len(self._sent)

    @property
    def damaged(self) -> int:
        """The number of damaged lines of the journal, which cannot be sent."""
        return self._reader.damaged

    def open(self) -> None:
        """Connect, and find or make the run in MLflow."""
        if self._cursor is not None:
            return
        cursor = self.files.load()
        if cursor is None or cursor.uri != self.store.name:
            cursor = self._begun(self.store.experiment(self.experiment), None)
            self.files.save(cursor)
        self._describe(self._known(cursor), cursor)
        self.store.set_status(cursor.run, "RUNNING")
        self._cursor, self._sent = cursor, self.files.sent(cursor)
        self._begin_again(cursor.started)

    def send(self) -> int:
        """Send what is new in the journal, a batch at most; return how many rows that was."""
        self.open()
        self._finish_batch()
        try:
            self._fill()
        except TakenBackError:
            self._begin_again(self.cursor.started)
            return self.send()
        except DivergedError:
            self._supersede()
            return self.send()
        batch = self._next_batch()
        if batch.digests:
            self._cursor = replace(self.cursor, sending=batch)
            self.files.save(self.cursor)
            self._finish_batch()
        return len(batch.digests)

    def missing(self) -> int:
        """Return how many rows of the journal have not arrived."""
        reader = JournalReader(self.run / JOURNAL)
        while reader.read_lines():
            pass
        return max(0, reader.position.rows - len(self._sent if self._cursor else self._sent_before()))

    def send_results(self, progress: Callable[[], None]) -> None:
        """Send what a run that nobody trains any more has come to, and its files."""
        self.identity = read_identity(self.run)
        status = str(self.identity.get("status"))
        if status == "finished" and self._reader.position.rows < len(self._sent):
            self._supersede()  # the journal, which is the truth, has fewer rows than were sent before
            while self.send():
                progress()
        if status in ("finished", "failed"):
            self.store.log(self.cursor.run, self._translator.final(self.identity))
            for file in self._artifacts():
                progress()
                place = file.relative_to(self.run)
                self.store.upload(self.cursor.run, file, place_of(place))

    def close(self) -> None:
        """Say how the run ended, if it has."""
        self._sweep()
        if is_training(self.run):
            return
        ended = self._translator.time_of(self._translator.last)
        status = STATUS.get(str(self.identity.get("status")), "KILLED")
        self.store.set_status(self.cursor.run, status, ended)

    def _artifacts(self) -> list[Path]:
        named = [self.run / CONFIG, self.run / IDENTITY]
        inside = [path for folder in FOLDERS for path in sorted((self.run / folder).rglob("*"))]
        files = [path for path in named + inside if path.is_file() and not path.is_symlink()]
        return [path for path in files if not path.name.startswith(".")]

    def _begin_again(self, started: int) -> None:
        """Read the journal from its first row."""
        self._reader, self._translator = JournalReader(self.run / JOURNAL), Translator(started)
        self._queue: deque[dict[str, Any]] = deque()

    def _fill(self) -> None:
        """Read on; what was sent before must say the same again."""
        while not self._queue:
            rows = self._reader.read_rows()
            if not rows:
                return
            for row in rows:
                if row["seq"] >= len(self._sent):
                    self._queue.append(row)
                elif digest(row) == self._sent[row["seq"]]:
                    self._translator.metrics(row)
                else:
                    raise DivergedError

    def _next_batch(self) -> Batch:
        batch = Batch(len(self._sent), [], [])
        while self._queue and len(batch.metrics) < BATCH_METRICS:
            row = self._queue.popleft()
            batch.digests.append(digest(row))
            batch.metrics += [list(metric) for metric in self._translator.metrics(row)]
        return batch

    def _finish_batch(self) -> None:
        """Send the batch that is on its way, perhaps for the second time, unless it is known to have arrived."""
        batch = self.cursor.sending
        if batch.first + len(batch.digests) > len(self._sent):
            self.store.log(self.cursor.run, [LoggedMetric(*metric) for metric in batch.metrics])
            self.files.add(self.cursor, batch)
            self._sent[batch.first :] = batch.digests

    def _known(self, cursor: Cursor) -> Found:
        """Return the run that the cursor names."""
        try:
            return self.store.get(cursor.run)
        except StoreError as error:
            hint = f"; to send the run anew, remove {self.files.folder}" if error.is_final else ""
            raise StoreError(f"{error}{hint}", error.is_final) from None

    def _begun(self, experiment: str, continues: str | None) -> Cursor:
        """Return a cursor for a run of MLflow's that has no rows yet."""
        there = self.store.find(experiment, self.identity["id"])
        empty = [found for found in there if found.is_empty and found.id != continues]
        if continues is None:  # rows of which nothing is known here: those curves cannot be gone on with
            continues = next((found.id for found in there if not found.is_empty), None)
        found = empty[0] if empty else self._created(experiment, continues)
        return Cursor(self.store.name, experiment, found.id, found.started, continues)

    def _created(self, experiment: str, continues: str | None) -> Found:
        tags = {RUN_ID: self.identity["id"], **({CONTINUES: continues} if continues else {})}
        return self.store.create(experiment, name_of(self.run), self._started(), tags)

    def _started(self) -> int:
        return round(1000 * begun(self.run, self.identity))

    def _supersede(self) -> None:
        """Go on in another run of MLflow's: curves that differ must not cross."""
        cursor = self._begun(self.cursor.experiment, self.cursor.run)
        self.files.save(cursor)
        self._cursor = None
        self.open()

    def _describe(self, found: Found, cursor: Cursor) -> None:
        """Set parameters and tags; parameters cannot be changed, so what a resumed run has changed becomes a tag."""
        now = parameters(self.config)
        changed = {name: value for name, value in now.items() if found.parameters.get(name, value) != value}
        fresh = {name: value for name, value in now.items() if name not in found.parameters}
        tags = {
            "ludus.version": __version__,
            "ludus.env": now.get("env", ""),
            "ludus.algorithm": now.get("algorithm.name", ""),
            "ludus.seed": now.get("seed", ""),
            "mlflow.source.name": "ludus",
            **{f"ludus.resumed_with.{name}": value for name, value in changed.items()},
            **({CONTINUES: cursor.continues} if cursor.continues else {}),
        }
        self.store.describe(found.id, fresh, tags)
        if cursor.continues:
            self.store.describe(cursor.continues, {}, {SUPERSEDED: cursor.run})
            self.store.set_status(cursor.continues, "KILLED")

    def _sweep(self) -> None:
        """Delete empty runs that a request left which was answered too late."""
        for found in self.store.find(self.cursor.experiment, self.identity["id"]):
            if found.is_empty and found.id != self.cursor.run and self._sent:
                self.store.delete(found.id)

    def _sent_before(self) -> list[str]:
        cursor = self.files.load()
        return self.files.sent(cursor) if cursor else []
