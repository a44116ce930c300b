"""Runtime: random keys, packed arrays, compiled programs, counters, files, child processes, signals."""
