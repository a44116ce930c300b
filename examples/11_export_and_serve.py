"""A policy for another runtime: ONNX, proven to act alike, then served without ludus or JAX."""

import numpy as np
import onnxruntime

import ludus
from ludus.export import export_policy

env = ludus.make_env("CartPole-v1", num_envs=8)
trainer = ludus.Trainer(ludus.PPO(batch_size=1024, minibatch_size=128, learning_rate=3e-3), env)
trainer.train(total_steps=20_480)

exported = export_policy(trainer.policy, "onnx", "exported", env=env)
print(exported)

session = onnxruntime.InferenceSession("exported/policy.onnx")
observation = np.array([[0.0, 0.1, 0.02, -0.1]], np.float32)
action = session.run(["action"], {"obs": observation})[0]
print("ONNX:", action, "ludus:", trainer.policy(observation))
assert (action == trainer.policy(observation)).all()
