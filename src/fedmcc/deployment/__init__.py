"""Federations across machines: `setup` creates one, `server` and `site` run it, `flower` is the transport."""

PROTOCOL = 4  # version of the messages: signed since 2, small ones in packets since 3, confirmed sums since 4
