"""Federations across machines: `setup` creates one, `server` and `site` run it, `flower` is the transport."""

PROTOCOL = 2  # version of the messages between server and sites; 2: they are signed
