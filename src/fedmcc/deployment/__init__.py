"""Real federations: `setup` creates one, `server` and `site` run the two sides, `flower` is the transport."""
