"""A driving simulator: generated roads with traffic, a car to drive, rewards and metrics by name."""
