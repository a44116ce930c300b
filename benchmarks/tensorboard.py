"""What writing TensorBoard's files costs. Prints one JSON object.

Example: `python benchmarks/tensorboard.py`. `thread_microseconds_a_row` is the processor time of the thread that
writes them, over all rows of a CartPole run (reading the journal, encoding, checksums, writing), and `share_of_thread`
that time as a share of the run; `share_of_training_thread` is the wall-clock time that the training thread spends in
`begin`, `wake` and `end`, waits for the interpreter's lock included, as a share of the run. The run is a short one, so
what is done once weighs most in it: `steady_microseconds_a_row` is for rows in the middle of a long journal.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import ludus
from ludus.runs.trackers.tensorboard import EventWriter, TensorBoardTracker


class Timed(TensorBoardTracker):
    """A tracker that knows what it costs."""

    spent = written = cost = 0.0

    def _timed(self, method: Any, *args: Any) -> None:
        started = time.perf_counter()
        method(*args)
        self.spent += time.perf_counter() - started

    def begin(self, folder: Any) -> None:
        """Begin."""
        self._timed(super().begin, folder)

    def wake(self) -> None:
        """Wake."""
        self._timed(super().wake)

    def end(self) -> None:
        """End."""
        self._timed(super().end)

    def _follow(self, folder: Any) -> None:
        super()._follow(folder)
        self.cost += time.thread_time()


def one_run(seed: int) -> tuple[float, float, float]:
    env = ludus.make_env("CartPole-v1", num_envs=8)
    ppo = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ludus.Trainer(
            ppo, env, ludus.Settings(seed=seed, eval_frequency=0, verbose=False), run_dir=Path(folder) / "run"
        )
        tracker = Timed(print)
        trainer.record.trackers = [tracker]
        started = time.perf_counter()
        result = trainer.train(total_steps=28_672)
        seconds = time.perf_counter() - started
        return tracker.cost / (result.iterations + 1), tracker.cost / seconds, tracker.spent / seconds


def steady(rows: int) -> float:
    """Seconds a row of a journal that is long already."""
    env = ludus.make_env("CartPole-v1", num_envs=4)
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = tensorboard_off()
        ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, verbose=False, tracking=options), run_dir=run).train(
            rows * 64
        )
        writer = EventWriter(run)
        writer._begin()
        started = time.thread_time()
        while writer.advance():
            pass
        return (time.thread_time() - started) / writer.rows


def tensorboard_off() -> Any:
    from ludus.runs.trackers.base import TrackingOptions

    return TrackingOptions(tensorboard=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000)
    given = parser.parse_args()
    runs = [one_run(seed) for seed in range(given.repeats + 1)][1:]  # the first one compiles
    row, thread, training = (statistics.median(column) for column in zip(*runs, strict=True))
    figures = {
        "thread_microseconds_a_row": round(1e6 * row, 1),
        "share_of_thread": round(thread, 5),
        "share_of_training_thread": round(training, 5),
        "steady_microseconds_a_row": round(1e6 * steady(given.rows), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
