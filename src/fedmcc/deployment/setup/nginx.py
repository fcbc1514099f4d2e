"""nginx in front of Flower's server: what sites need passes, what could start or list runs does not."""

import ipaddress
import shutil
from collections.abc import Sequence

from fedmcc.deployment.setup.layout import FederationSpec, Operator
from fedmcc.errors import InputError

BODY = "64m"  # Flower cuts arrays into pieces of 5 MB

CONFIGURATION = """# Written by fedmcc at every start.
# Sites reach Flower's fleet interface here and nothing else: its control interface, which starts runs on
# every site, listens on this machine alone.
daemon off;
worker_processes 2;
pid "{server}/nginx.pid";
error_log "{server}/logs/proxy.log" warn;

events {{ worker_connections 1024; }}

http {{
    log_format refused '$time_iso8601 $remote_addr "$request_method $uri" $status';
    map $status $refused {{ ~^[23] 0; default 1; }}
    access_log "{server}/logs/refused.log" refused if=$refused;
    server_tokens off;
    default_type text/plain;

    client_body_temp_path "{server}/proxy/body";
    proxy_temp_path "{server}/proxy/proxy";
    fastcgi_temp_path "{server}/proxy/fastcgi";
    uwsgi_temp_path "{server}/proxy/uwsgi";
    scgi_temp_path "{server}/proxy/scgi";

    upstream flower {{
        server 127.0.0.1:{control_port};
        keepalive 32;
    }}

    server {{
        listen {listen} ssl;
        ssl_certificate "{server}/server.crt";
        ssl_certificate_key "{server}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;

        client_max_body_size {body};
        client_body_timeout 120s;
        proxy_read_timeout 300s;
        proxy_send_timeout 120s;
        proxy_request_buffering off;  # updates do not touch the proxy's disk
        proxy_buffering off;

        location ~ ^/v1/fleet/[a-z-]+$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://flower$uri;  # what was matched, not what was written
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_name localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate "{server}/ca.crt";
        }}

        location / {{ return 403 "Only the traffic of sites passes here.\\n"; }}
    }}
}}
"""


def configuration(operator: Operator, terms: FederationSpec) -> str:
    """The configuration of nginx for this federation."""
    server = str(operator.server)
    if any(sign in server for sign in '"$\\\n'):
        raise InputError(f"nginx cannot read {server}: choose a folder without quotes, $ and backslashes.")
    return CONFIGURATION.format(
        server=server, control_port=terms.control_port, listen=_listen(terms), body=BODY
    )


def installed() -> str | None:
    """Where nginx is; it may lie where only administrators look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def required() -> str:
    """Where nginx is; without it a server that sites can reach would let them start runs."""
    if (program := installed()) is None:
        raise InputError(
            "nginx is not installed, and without it sites could start programs at one another: install it, "
            "or try the federation on this machine alone with --no-proxy."
        )
    return program


def words(program: str, operator: Operator) -> Sequence[str]:
    """How nginx is called."""
    return (
        program,
        *("-p", str(operator.server)),
        *("-e", str(operator.logs / "proxy.log")),  # until it has read its configuration
        *("-c", str(operator.proxy_file)),
    )


def own_host(terms: FederationSpec) -> str:
    """Where nginx is reached from its own machine."""
    try:
        address = ipaddress.ip_address(terms.host)
    except ValueError:
        return "127.0.0.1"
    if address.is_loopback:
        return terms.host
    return "::1" if address.version == 6 else "127.0.0.1"


def _listen(terms: FederationSpec) -> str:
    """All interfaces, but for a server that is to be reached from its own machine alone."""
    host = own_host(terms)
    if host == terms.host:
        return terms.address
    return f"[::]:{terms.port}" if host == "::1" else str(terms.port)
