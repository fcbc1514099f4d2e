"""The server of a federation. Its life, from top to bottom:

`submit` chooses and follows a run, `launch` starts Flower and nginx, Flower gets `request` and `bundle` and
starts `app`; there `coordinator` waits for the sites (`membership`) and trains with them (`site_engine`).
`status` shows the state to the operator.
"""
