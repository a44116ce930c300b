"""Learning: the algorithm protocol, PPO, and the pure mathematics under it."""
