"""Doors for people who come with another vocabulary: each file translates names and builds what the core has.

`ppo_kit` has `PPOClip`, its buffers and `OnPolicyTrainer`; `ppo_trainer` has `PPOTrainer`, `CartPoleWrapper`, and from
`ppo_agent` and `ppo_network` `PPOAgent` and `PPONetwork`; `mlflow_logger` has `MLflowLogger`; `sequence` has `train`
and its three transformers. Nothing is possible only through a door; docs/en/doors.md maps the names.
"""
