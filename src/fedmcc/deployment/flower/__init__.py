"""Flower as a transport: its programs as processes, its records, and the connection to the server."""
