"""Runs: from a configuration to a run directory, and from a run directory to predictions and scores."""
