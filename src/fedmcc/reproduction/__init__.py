"""Reproduces the paper's tables and figures: each is data in recipes/tables, each cell an ordinary run."""
