"""A tracker of your own, which shows runs elsewhere: here with the API of Weights & Biases (init, log, finish).

With the real library, write `import wandb` in place of the class below. The journal's rows arrive each once, on a
thread of their own: if the service is down, training goes on, and `ludus track RUN` sends the rest.
"""

import ludus


class wandb:  # noqa: N801  a stand-in with the same names, so that this file runs without an account
    """Keeps what it is told in memory."""

    runs: dict = {}  # noqa: RUF012

    @classmethod
    def init(cls, project, id, name, config, resume):
        cls.current = cls.runs.setdefault(id, {"project": project, "name": name, "config": config, "history": []})
        return cls

    @classmethod
    def log(cls, figures, step):
        cls.current["history"].append((step, figures))

    @classmethod
    def finish(cls, exit_code=0):
        cls.current["exit_code"] = exit_code


class WandbTracker:
    """Three functions are all that a tracker needs."""

    def __init__(self, project: str = "ludus"):
        self.project = project

    def begin(self, run):  # a resumed run has the id that it had
        self.client = wandb.init(
            project=self.project, id=run["id"], name=run["name"], config=run["config"], resume="allow"
        )

    def log(self, rows):
        for row in rows:
            self.client.log({name: x for name, x in row.items() if isinstance(x, int | float)}, step=row["seq"])

    def end(self, result):
        self.client.finish(exit_code=0 if result["status"] == "finished" else 1)


tracking = ludus.TrackingOptions(
    own=[WandbTracker(project="carts")]
)  # on the command line: tracking.own=[my:WandbTracker]
env, ppo = ludus.make_env("CartPole-v1", num_envs=8), ludus.PPO(batch_size=512, minibatch_size=128)
ludus.Trainer(ppo, env, ludus.Settings(tracking=tracking), run_dir="runs/tracked").train(total_steps=8192)

(shown,) = wandb.runs.values()
steps = [step for step, figures in shown["history"]]
print(
    f"{shown['name']} in {shown['project']}: {len(steps)} rows, the last of step {shown['history'][-1][1]['steps']:,}"
)
assert steps == list(range(len(steps))) and len(steps) > 16 and shown["exit_code"] == 0
