"""Takes the place of `flwr-clientapp` at a site: hands its arguments over to the process that has loaded it.

Run as a file by `preload`, so that nothing but Python starts: hand_over.py PIPE PROGRAM ARGUMENTS. If nobody
reads the pipe, this program is run.
"""

import json
import os
import sys

MAX_BYTES = 4096  # writes of up to PIPE_BUF bytes arrive in one piece


def main() -> None:
    """Write the arguments to the pipe as one line, or become the program."""
    pipe, program, *arguments = sys.argv[1:]
    line = json.dumps(arguments).encode() + b"\n"
    try:
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        if len(line) <= MAX_BYTES and os.write(file, line) == len(line):
            return
    except OSError:  # no such pipe, no reader, or it is full
        pass
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
