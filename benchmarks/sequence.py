"""How fast sequence policies train and act, by the length of their window, and beside PyTorch. Prints one JSON object.

.venv/bin/python benchmarks/sequence.py windows document --repeats 3
.venv/bin/python benchmarks/sequence.py windows --windows 10 32 --steps 4096

windows     for each window, in a process of its own: environment steps per second of PPO on the vector toy with
            episodes of 128 steps; microseconds in which 16 environments act once; bytes that each remembers; and
            the most memory that the process, or on a GPU the device, has held
document    seconds of one iteration of `train` with the document's sizes (10 episodes of 5 steps, 6 layers,
            feed-forward 2048, 4 epochs), a reward model among them: ludus with and without branches; PyTorch with
            episodes side by side, and one masked pass over all steps in each epoch; and PyTorch as the document
            has it, one sequence at a time. Contenders take turns; medians are over repeats. Neither compares
            with branches, which PyTorch's have not. Where PyTorch is not installed its figures are null.

Each is timed by the clock on the wall and by the processor's time of the process, all its threads together, which other
programs disturb less. `--only` chooses contenders of the document. PyTorch has one thread unless told otherwise, since
`ludus` keeps about one core busy with these sizes, and since PyTorch's threads wait for one another by computing.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np

import ludus
from ludus.envs.sequence.vector_toy import vector_toy
from ludus.networks.network import network_for
from ludus.runtime import compilation
from ludus.types import Spec

EPISODE, ENVS, ACTS = 128, 16, 200
CONTENDERS = ["ludus", "ludus_with_5_branches", "torch_batched", "torch_eager_loop"]
SIZES = {"model_dim": 64, "num_layers": 2, "num_heads": 4, "feedforward_dim": 128}


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that something takes, by the clock on the wall and of the processor's time."""
    began, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - used


def of_window(window: int, steps: int) -> dict[str, Any]:
    """Train and act with one window."""
    env = ludus.make_env(vector_toy(horizon=EPISODE), ENVS)
    ppo = ludus.PPO(network=ludus.Transformer(window, **SIZES), batch_size=ENVS * EPISODE, minibatch_size=4 * EPISODE)
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=0, health_frequency=0, verbose=False)
    trainer = ludus.Trainer(ppo, env, settings)
    trainer.train(total_steps=ppo.batch_size)  # compiled
    seconds, used = timed(lambda: trainer.train(total_steps=ppo.batch_size + steps))
    network = network_for(ppo.network, Spec(env.observation_space, env.action_space, ENVS))
    module = network.merge(trainer.learner.parameters)
    memory, obs = module.initial_memory(ENVS), np.zeros((ENVS, 10), np.float32)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(memory)) // ENVS

    @jax.jit
    def act(memory: Any) -> Any:
        """Act as a rollout does: step after step inside one program."""
        return jax.lax.scan(lambda latest, _: module.remember(latest, obs), memory, length=ACTS)

    jax.block_until_ready(act(memory))
    acting = [timed(lambda: jax.block_until_ready(act(memory))) for _ in range(5)]
    trained = trainer.record.steps - ppo.batch_size
    device = jax.devices()[0].memory_stats() or {}
    most = device.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return {
        "steps_per_second": round(trained / seconds),
        "processor_microseconds_per_step": round(used / trained * 1e6, 1),
        "act_microseconds": round(statistics.median(wall for wall, _ in acting) / ACTS * 1e6, 1),
        "act_processor_microseconds": round(statistics.median(used for _, used in acting) / ACTS * 1e6, 1),
        "bytes_remembered": kept,
        "peak_megabytes": round(most / 2**20),
    }


def in_own_process(window: int, steps: int) -> dict[str, Any]:
    """Measure one window where no other has left anything in memory."""
    command = [sys.executable, __file__, "windows", "--one", str(window), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ludus_iterations(branches: int) -> Callable[[int], None]:
    """Return what makes so many iterations of `train` more."""
    from ludus.compat.sequence import TransformerPolicyNetwork, TransformerRewardModel, TransformerValueNetwork, train

    compilation.SHORT_WORK = 0.0  # the first iteration is compiled as that of a thousand is
    nets = TransformerPolicyNetwork(10, 4), TransformerValueNetwork(10), TransformerRewardModel(10)
    trainer = train(*nets, num_iterations=1, branches=branches).trainer
    return lambda count: trainer.train(max_episodes=trainer.record.episodes + 10 * count)


def torch_iterations(side_by_side: bool) -> Callable[[int], None]:  # noqa: C901  a trainer as people write it
    """Likewise in PyTorch: the same networks, task, updates and numbers of everything."""
    import torch
    from torch import nn

    episodes, length, epochs = 10, 5, 4

    class Net(nn.Module):
        def __init__(self, outputs: int):
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 8, 2048, 0.1, norm_first=True)
            self.embed, self.positions = nn.Linear(10, 64), nn.Parameter(torch.zeros(10, 1, 64))
            self.encoder = nn.TransformerEncoder(layer, 6, norm=nn.LayerNorm(64), enable_nested_tensor=False)
            self.head = nn.Linear(64, outputs)

        def forward(self, rows: Any) -> Any:
            """Of every step, what the steps up to it say: `[T, B, outputs]`."""
            mask = nn.Transformer.generate_square_subsequent_mask(len(rows))
            h = self.embed(rows) + self.positions[: len(rows)]
            return self.head(self.encoder(h, mask=mask, is_causal=True))

    policy, value, reward = Net(4), Net(1), Net(1)
    optimizers = torch.optim.Adam(policy.parameters(), 1e-4), torch.optim.Adam(value.parameters(), 1e-3)
    batch = episodes if side_by_side else 1

    @torch.no_grad()
    def collect() -> tuple[Any, ...]:
        """Play `batch` episodes."""
        for net in (policy, value, reward):
            net.eval()
        states, actions, logps, rewards = [torch.randn(batch, 10)], [], [], []
        for _ in range(length):
            logits = policy(torch.stack(states))[-1]
            choice = torch.distributions.Categorical(logits=logits)
            actions.append(choice.sample())
            logps.append(choice.log_prob(actions[-1]))
            states.append(states[-1] + actions[-1][:, None])
            rewards.append(reward(torch.stack(states))[-1, :, 0])
        target, total = [], torch.zeros(batch)
        for each in reversed(rewards):
            total = each + 0.99 * total
            target.insert(0, total)
        return torch.stack(states[:-1]), torch.stack(actions), torch.stack(logps), torch.stack(target)

    def seen(net: Any, rows: Any) -> Any:
        """Evaluate all steps in one pass; or, one sequence at a time, each step by itself."""
        return net(rows) if side_by_side else torch.stack([net(rows[: t + 1])[-1] for t in range(len(rows))])

    def learn(states: Any, actions: Any, old: Any, target: Any) -> None:
        with torch.no_grad():
            advantage = target - seen(value, states)[..., 0]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(epochs):
            value.train()
            choice = torch.distributions.Categorical(logits=seen(policy, states))
            ratio = (choice.log_prob(actions) - old).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            losses = (
                -surrogate.mean() - 0.01 * choice.entropy().mean(),
                (seen(value, states)[..., 0] - target).square().mean(),
            )
            for net, optimizer, loss in zip((policy, value), optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
            value.eval()

    def iterations(count: int) -> None:
        for _ in range(count * episodes // batch):
            learn(*collect())

    return iterations


def contenders(only: list[str], torch_threads: int) -> dict[str, Callable[[int], None]]:
    """Return those that are asked for and installed, each compiled."""
    makers = {"ludus": lambda: ludus_iterations(0), "ludus_with_5_branches": lambda: ludus_iterations(5)}
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(torch_threads)
        makers |= {"torch_batched": lambda: torch_iterations(True), "torch_eager_loop": lambda: torch_iterations(False)}
    made = {name: make() for name, make in makers.items() if name in only}
    for run in made.values():
        run(1)
    return made


def document(repeats: int, iterations: int, only: list[str], torch_threads: int) -> dict[str, Any]:
    """Let the contenders take turns."""
    if find_spec("loguru") is None:
        module = ModuleType("loguru")
        module.logger = SimpleNamespace(info=lambda text: None)  # ty: ignore[unresolved-attribute]
        sys.modules["loguru"] = module
    else:
        from loguru import logger

        logger.remove()
    runs = contenders(only, torch_threads)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            count = max(1, iterations // 5) if name == "torch_eager_loop" else iterations
            seconds, used = timed(partial(run, count))
            taken[name].append((seconds / count, used / count))
            print(name, *taken[name][-1], file=sys.stderr, flush=True)
    found = {}
    for at, clock in enumerate(("wall", "processor")):
        medians = {name: round(statistics.median(each[at] for each in taken[name]), 4) for name in taken}
        found[f"{clock}_seconds_per_iteration"] = medians
        found[f"{clock}_each"] = {name: [round(each[at], 4) for each in taken[name]] for name in taken}
        if "ludus" in medians:
            found[f"{clock}_times_as_long_as_ludus"] = {
                name: round(medians[name] / medians["ludus"], 2) for name in medians if name.startswith("torch")
            } or None
    return found


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["windows", "document"])
    parser.add_argument("--windows", type=int, nargs="+", default=[10, 32, 128, 512])
    parser.add_argument("--steps", type=int, default=8 * ENVS * EPISODE, help="environment steps that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10, help="of the document's example, in each repeat")
    parser.add_argument("--only", nargs="+", default=CONTENDERS, choices=CONTENDERS, help="contenders of the document")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(of_window(args.one, args.steps)))
        return
    device = {"device": str(jax.devices()[0]), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    result: dict[str, Any] = {**device, "windows": {}}
    if "windows" in args.parts:
        result["windows"] = {str(window): in_own_process(window, args.steps) for window in args.windows}
    if "document" in args.parts:
        result["document"] = document(args.repeats, args.iterations, args.only, args.torch_threads)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
