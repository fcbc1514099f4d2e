"""Federated training: the round loop, its clients, checks of their updates, privacy, and engines."""
