"""A site of a federation. Its life, from top to bottom:

`check` measures its images before it joins, `launch` runs Flower's program and reconnects, `app` answers the
messages of the server, and `worker` trains and stores the site's state.
"""
