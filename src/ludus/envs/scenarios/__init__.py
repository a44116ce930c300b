"""Environments whose episodes are drawn from a set of scenarios: the protocol, drawing, sets in files."""
