"""A policy of sequences and its critic, trained in place on the rewards of a reward model.

1,000 iterations take some minutes on two cores; `python 14_sequence_training.py 20` makes 20 of them.
"""

import sys

import jax

from ludus.compat.sequence import TransformerPolicyNetwork, TransformerRewardModel, TransformerValueNetwork, train

if __name__ == "__main__":
    # Hyperparameters
    input_dim = 10
    action_dim = 4
    num_iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    episodes_per_iteration = 10
    sequence_length = 10
    max_depth = 5
    gamma = 0.99
    clip_epsilon = 0.2
    policy_lr = 1e-4
    value_lr = 1e-3
    device = jax.devices()[0]  # or "cpu", "cuda"

    # Initialize networks
    policy_net = TransformerPolicyNetwork(input_dim, action_dim).to(device)
    value_net = TransformerValueNetwork(input_dim).to(device)
    reward_model = TransformerRewardModel(input_dim).to(device)

    # Start training
    history = train(
        policy_net,
        value_net,
        reward_model,
        num_iterations=num_iterations,
        episodes_per_iteration=episodes_per_iteration,
        sequence_length=sequence_length,
        max_depth=max_depth,
        gamma=gamma,
        clip_epsilon=clip_epsilon,
        policy_lr=policy_lr,
        value_lr=value_lr,
    )
    print(f"mean return {history[0]['mean_return']:.2f} at first, {history[-1]['mean_return']:.2f} at last")
