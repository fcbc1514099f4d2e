"""Runs: train from a configuration into a run directory, then predict and evaluate from it."""
