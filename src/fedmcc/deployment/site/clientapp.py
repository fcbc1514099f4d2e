"""Flower's program `flwr-clientapp` with the app that is installed at this site.

Flower's own program installs and runs the app that the server sends: whoever controls the server could run
any code at a site. This one ignores it, and never installs packages.

python -m fedmcc.deployment.site.clientapp ARGUMENTS
"""

from collections.abc import Callable

from flwr.clientapp import ClientApp
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from fedmcc.deployment.site.app import client_app


def main() -> None:
    """Answer one message."""
    use_installed_app()
    flwr_clientapp()


def use_installed_app() -> None:
    """Replace the steps of Flower's program that use the app of the server."""
    for name in ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn"):
        if not hasattr(run_clientapp, name):  # an unknown version of Flower could run the server's app
            raise ImportError(f"Flower has no {name}: install the version of Flower that fedmcc requires.")
    replaced = vars(run_clientapp)
    replaced["install_from_fab"] = replaced["install_app_dependencies"] = _ignore
    replaced["get_load_client_app_fn"] = _installed


def _ignore(*_: object, **__: object) -> None:
    return None


def _installed(*_: object, **__: object) -> Callable[[str, str, str], ClientApp]:
    return lambda *_: client_app


if __name__ == "__main__":
    main()
