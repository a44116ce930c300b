"""Sequence tasks: made of four functions of the user's, or token by token with a reward that can be verified."""
