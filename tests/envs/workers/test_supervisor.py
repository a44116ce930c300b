"""The seam between supervision and transport: workers that are no processes are supervised all the same."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest
from worker_envs import Draws, Ledger
from worker_runs import Runner, assert_true_pairs

import ludus
from ludus.envs.adapters.gymnasium import GymnasiumEnv
from ludus.envs.adapters.gymnasium_factory import factory
from ludus.envs.base import AnyEnv, HostStep
from ludus.envs.workers.pool import WorkerPool
from ludus.envs.workers.shared_memory import NO_SEED, Results, map_tree, results_like, row_shapes
from ludus.envs.workers.supervisor import RESTARTS, WorkerEnv, WorkerOptions
from ludus.envs.workers.transport import Fault, Place, Transport


class InThisProcess:
    """A transport whose workers are batches of this process; `orders` holds faults that are still to come."""

    def __init__(self, make: Callable, num_envs: int, id: str, options: dict, num_workers: int):
        self.make, self.id, self.options, self.num_envs = make, id, options, num_envs
        size = num_envs // num_workers
        self.rows = [slice(size * i, size * (i + 1)) for i in range(num_workers)]
        self.batches: dict[int, GymnasiumEnv] = {}
        self.orders: list[tuple[int, Fault]] = []
        self.started: list[int] = []
        self.last_action, self.is_open = None, True
        self.generators = np.zeros((num_workers, 0), np.uint32)

    @property
    def spaces(self):
        return self.batches[0].observation_space, self.batches[0].action_space

    @property
    def outcome(self) -> HostStep:
        return HostStep(*self.results[:5], info=[self.batches[i].info for i in sorted(self.batches)])

    def start(self, worker: int) -> None:
        rows = self.rows[worker]
        self.started.append(worker)
        self.batches[worker] = GymnasiumEnv(self.make, rows.stop - rows.start, self.id, self.options, [0, 0])

    def reset(self, worker: int, seeds: Sequence[int]) -> None:
        obs = self.batches[worker].reset([seed for seed in seeds if seed != NO_SEED])
        if not hasattr(self, "results"):
            shapes = results_like(row_shapes(obs))
            self.results = Results(*map_tree(lambda x: np.zeros((self.num_envs, *x.shape[1:]), x.dtype), shapes))
        self._write(worker, obs, self.results.obs)

    def step(self, action) -> None:
        self.last_action = map_tree(np.array, action)
        for worker, batch in self.batches.items():
            outcome = batch.step(map_tree(lambda x, rows=self.rows[worker]: x[rows], self.last_action))
            for mine, whole in zip(outcome[:5], self.results[:5], strict=True):
                self._write(worker, mine, whole)

    def _write(self, worker: int, part, whole) -> None:
        map_tree(lambda x, room: np.copyto(room[self.rows[worker]], x), part, whole)

    def restore(self, worker: int, saved: dict[str, np.ndarray]) -> None:
        recalled = self.batches[worker].restore(saved)
        parts = recalled.obs, recalled.episode_return, recalled.is_lost, recalled.has_drawn
        whole = self.results.obs, self.results.reward, self.results.terminated, self.results.truncated
        for mine, room in zip(parts, whole, strict=True):
            self._write(worker, mine, room)

    def save(self, worker: int) -> None:
        pass

    def wait(self, workers: Sequence[int], limit: float) -> list[tuple[int, Fault]]:
        now = [order for order in self.orders if order[0] in workers]
        self.orders = [order for order in self.orders if order not in now]
        return now

    def unanswered(self) -> list[int]:
        return []

    def place(self, worker: int) -> Place:
        return Place(self.rows[worker].start, is_resetting=False)

    def end(self, worker: int) -> None:
        self.batches.pop(worker).close()

    def close(self) -> None:
        self.is_open = False


def supervised(num_envs: int = 4, on_fault: str = "restart") -> tuple[WorkerEnv, InThisProcess]:
    make, id = factory(Ledger, {})
    env = WorkerEnv(make, num_envs, id, {}, 2, WorkerOptions(on_fault=on_fault), InThisProcess)
    assert isinstance(env._pool, InThisProcess)
    return env, env._pool


def test_another_transport_gives_the_same_rollouts():
    runs = [Runner(ludus.make_env(Ledger, 4)), Runner(supervised()[0])]
    for _ in range(2):
        (steps, _), (other, _) = [run.rollout() for run in runs]
        jax.tree.map(np.testing.assert_array_equal, steps, other)
    saved = runs[1].env.snapshot()
    again, _ = supervised()
    recalled = again.restore({name: x for name, x in saved.items() if name != "generators"})
    np.testing.assert_array_equal(recalled.obs, runs[1].carry.env.obs)


def test_faults_are_judged_without_knowing_what_a_worker_is(caplog):
    env, transport = supervised()
    run = Runner(env)
    run.rollout(3)
    transport.orders.append((1, Fault("was taken away by the cluster")))
    steps, _ = run.rollout(8)
    assert_true_pairs(steps)
    assert (~steps.valid).any(axis=0).tolist() == [False, False, True, True] and transport.started == [0, 1, 1]
    (said,) = caplog.messages
    assert "object:Ledger: environment 2 (worker 1, stepping; seed " in said and "taken away by the cluster; " in said


def test_a_transport_whose_workers_always_fail_is_closed():
    env, transport = supervised()
    run = Runner(env)
    transport.wait = lambda workers, limit: [(worker, Fault("is broken")) for worker in workers]
    with pytest.raises(ludus.LudusError, match=f"is broken .given up after {RESTARTS} restarts"):
        run.rollout(1)
    assert not transport.is_open
    stopping, transport = supervised(on_fault="stop")
    run = Runner(stopping)
    transport.orders.append((0, Fault("is broken")))
    with pytest.raises(ludus.LudusError, match=r"is broken$"):
        run.rollout(1)


def test_the_transport_of_processes_and_every_kind_of_batch_keep_their_protocols():
    make, id = factory(Draws, {})
    pool: Transport = WorkerPool(make, 2, id, {}, 2)
    members = [name for name in vars(Transport) if not name.startswith("_")]
    assert len(members) >= 17 and all(hasattr(type(pool), name) or name in vars(pool) for name in members)
    pool.close()
    for name in ("jax:CartPole-v1", "gym:CartPole-v1", "envpool:CartPole-v1"):
        env = ludus.make_env(name, 2)
        assert isinstance(env, AnyEnv) and env.worker_settings == {"num_workers": 0}
        assert (env.return_threshold, env.max_episode_steps, tuple(env.env_wrappers)) == (475.0, 500, ())
        env.close()
    assert isinstance(supervised()[0], AnyEnv)
