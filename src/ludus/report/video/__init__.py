"""Videos: a recorded episode, drawn frame by frame."""
