"""Doors for people who come with another vocabulary: each file translates names and builds what the core has.

`ppo_kit` has `PPOClip`, its buffers and its words; `ppo_trainer` has `PPOAgent`. Nothing is possible only through a
door.
"""
