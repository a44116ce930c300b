"""Networks: torsos, heads chosen from the action space, distributions, the actor-critic that PPO asks for."""
