"""Registers the keys of all sites in one process: `python -m fedmcc.deployment.flower.register KEY...`.

`flwr supernode register` starts a process for each key. The output has the same form as that of `flwr`.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import RegisterNodeRequest


def register(keys: list[Path]) -> list[int]:
    """Register public keys with the server in Flower's configuration; returns the node id of each."""
    client = init_http_client_from_connection(read_superlink_connection(None))
    try:
        requests = [RegisterNodeRequest(public_key=try_load_public_key(key)) for key in keys]
        return [client.RegisterNode(request=request).node_id for request in requests]
    finally:
        client.close()


def main() -> None:
    """Register the keys on the command line, and print the node ids or the error as JSON."""
    try:
        with redirect_stdout(sys.stderr):  # Flower prints the address of the server
            nodes = register([Path(key) for key in sys.argv[1:]])
        answer: dict[str, object] = {"success": True, "node-ids": nodes}
    except Exception as error:  # the caller gets a sentence, not a traceback
        answer = {"success": False, "error-message": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
