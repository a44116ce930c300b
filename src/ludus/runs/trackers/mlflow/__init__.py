"""MLflow: a run is sent there by a process of its own, which reads the run folder and remembers how far it came."""
