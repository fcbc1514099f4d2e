"""Flower as the transport: its programs as processes, its message records, and checks of the connection."""
