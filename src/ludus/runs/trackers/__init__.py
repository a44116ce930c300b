"""Trackers: TensorBoard and MLflow, which read the journal and remember how far they came."""
