"""Films on the way: while a run goes on, another process films its policy as it was.

Training never waits for it. There is at most one such process, of the lowest priority and without the accelerator, and
none is left when the run ends, however it ends: it lives as long as the pipe to it is open.
"""

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from ludus.algorithms.critic import save_critic
from ludus.algorithms.policy import save_policy
from ludus.runtime import processes
from ludus.training.trained import Trained
from ludus.types import LudusError

PATIENCE_SECONDS = 60.0
"""So long a run that is over waits for its last film."""


class FilmWriter(Protocol):
    """Writes on another thread, so that training does not wait for it (`checkpoint_writer.Keeper`)."""

    def write(self, job: Callable[[], None], what: str) -> None:
        """Do it after all that was given to it before; `what` names it in complaints."""
        ...


class _Job(NamedTuple):
    """A film that is being made."""

    process: subprocess.Popen
    folder: tempfile.TemporaryDirectory
    steps: int

    def last_words(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        lines = (Path(self.folder.name) / "errors").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def clear(self) -> None:
        """Close the pipe and remove the files."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.folder.cleanup()


class FilmProcess:
    """Has films made every `frequency` iterations; 0: none."""

    def __init__(self, frequency: int, say: Callable[[str], None]):
        """Begin with no process."""
        self.frequency, self._say = frequency, say
        self.wait = False
        """Whether the run has come to its end by itself, so that its last film may be finished."""
        self._job: _Job | None = None
        self._is_busy = False
        """Whether a film is being made, or is about to be: the thread that writes begins it when its turn comes."""
        self._filmed_at = self._skipped = 0
        self._trouble: list[str] = []

    def until_next(self, iterations: int) -> int:
        """Return how many iterations may be made at once without passing one after which a film is due."""
        return self.frequency - iterations % self.frequency if self.frequency else 2**31

    def if_due(
        self, run: Path, env_id: str, counts: dict[str, int], trained: Callable[[], Trained], writer: FilmWriter
    ) -> None:
        """Have a film made of the policy as it is now, if it is time and no other is being made.

        `counts` are the run's totals by their journal names; `trained` returns a copy of what it has learnt.
        """
        iteration = counts["iteration"]
        if not self.frequency or not iteration or iteration % self.frequency:
            return
        self._settle()
        if iteration == self._filmed_at or not self._is_possible(env_id):
            return
        self._filmed_at = iteration
        if self._is_busy:
            self._skipped += 1
            return
        self._is_busy = True
        filmed = trained()
        # On the thread that writes: neither the files nor the new process keep training waiting.
        writer.write(lambda: self._begin(run, filmed, counts), "video")

    def _is_possible(self, env: str) -> bool:
        if env.startswith("object:"):
            self._say(f"video_frequency={self.frequency}: no films, since another process cannot make {env}")
            self.frequency = 0
        return bool(self.frequency)

    def _begin(self, run: Path, filmed: Trained, counts: dict[str, int]) -> None:
        folder = None
        try:
            folder = tempfile.TemporaryDirectory(prefix="ludus-film-")
            files = [Path(folder.name) / f"{name}.safetensors" for name in ("policy", "critic")]
            save_policy(filmed.policy, files[0])
            if filmed.critic is not None:
                save_critic(filmed.critic, files[1])
            with (Path(folder.name) / "errors").open("wb") as errors:
                self._job = _Job(self._process(run, files, counts, errors), folder, counts["steps"])
        except (OSError, LudusError) as error:
            self._trouble.append(f"the film after {counts['steps']:,} steps was not begun ({error})")
            self._is_busy = False
            if folder is not None:
                folder.cleanup()

    @staticmethod
    def _process(run: Path, files: list[Path], counts: dict[str, int], errors: IO[bytes]) -> subprocess.Popen:
        words = [str(run.absolute()), *map(str, files)]
        words += [f"--{name}={counts[name]}" for name in ("steps", "iteration")]
        return processes.start(
            ["-m", "ludus.training.film", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # the terminal's Ctrl-C is the run's to hear
        )

    def _settle(self) -> None:
        """Look whether the process has ended, and say what went wrong."""
        if self._job is not None and self._job.process.poll() is not None:
            job, self._job, self._is_busy = self._job, None, False
            if job.process.returncode:
                reason = job.last_words() or f"exit code {job.process.returncode}"
                self._trouble.append(f"the film after {job.steps:,} steps failed ({reason}); training goes on")
            job.clear()
        while self._trouble:
            self._say(self._trouble.pop(0))

    def __enter__(self) -> "FilmProcess":
        """From now on a process may run."""
        self.wait = False
        return self

    def __exit__(self, *_: object) -> None:
        """Let the last film be finished if `wait`, for a while; a process that still runs then is ended."""
        try:
            if self.wait and self._job is not None:
                self._wait_for(self._job)
        finally:
            if self._job is not None and self._job.process.poll() is None:
                job, self._job, self._is_busy = self._job, None, False
                job.process.kill()
                job.process.wait()
                job.clear()
            self._settle()
            if self._skipped:
                self._say(f"{self._skipped} films were left out: the one before was still being made")
                self._skipped = 0

    def _wait_for(self, job: _Job) -> None:
        try:
            if job.process.poll() is None:
                self._say(f"waiting for the film after {job.steps:,} steps; Ctrl-C leaves it")
                job.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._say(f"the film after {job.steps:,} steps was given up after {PATIENCE_SECONDS:.0f} s")
        except KeyboardInterrupt:
            pass  # what was trained is saved already
