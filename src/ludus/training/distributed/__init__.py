"""Training on more than one device or machine."""
