"""Federations across machines: `setup` creates one, `server` and `site` run it, `flower` is the transport."""
