"""Host environments: what a batch of them shows, the numbers in their `info`, the log that brings them back."""
