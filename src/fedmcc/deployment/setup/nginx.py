"""Configures nginx in front of Flower's server: it forwards requests of sites and blocks run control."""

import ipaddress
import shutil
from collections.abc import Sequence

from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.errors import InputError

MAX_BODY = "64m"  # Flower sends arrays in pieces of 5 MB

TEMPLATE = """# Written by fedmcc at every start of the server: do not edit.
# Sites can reach Flower's fleet interface only. The control interface, which starts runs on every site,
# is reachable from this machine only.
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
        proxy_request_buffering off;  # do not write updates to the proxy's disk
        proxy_buffering off;

        location ~ ^/v1/fleet/[a-z-]+$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://flower$uri;  # the normalised path that was matched, not the one in the request
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_name localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate "{server}/ca.crt";
        }}

        location / {{ return 403 "Only requests from sites are allowed here.\\n"; }}
    }}
}}
"""


def render_configuration(operator: OperatorFolder, spec: FederationSpec) -> str:
    """The nginx configuration of a federation."""
    server = str(operator.server)
    if any(character in server for character in '"$\\\n'):
        raise InputError(
            f"nginx cannot read the path {server}: choose one without quotes, $ and backslashes."
        )
    return TEMPLATE.format(server=server, control_port=spec.control_port, listen=_listen(spec), body=MAX_BODY)


def find_nginx() -> str | None:
    """The path of nginx, also in folders that only an administrator has in PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def require_nginx() -> str:
    """The path of nginx; raises InputError without it, since sites could then start runs on each other."""
    if (program := find_nginx()) is None:
        raise InputError(
            "nginx is not installed, and without it one site could start programs on another: install it, "
            "or test the federation on this machine only with --no-proxy."
        )
    return program


def command_line(program: str, operator: OperatorFolder) -> Sequence[str]:
    """The command line that starts nginx."""
    return (
        program,
        *("-p", str(operator.server)),
        *("-e", str(operator.logs / "proxy.log")),  # the log until nginx has read its configuration
        *("-c", str(operator.proxy_file)),
    )


def local_host(spec: FederationSpec) -> str:
    """The address under which nginx is reached from its own machine."""
    try:
        address = ipaddress.ip_address(spec.host)
    except ValueError:
        return "127.0.0.1"
    if address.is_loopback:
        return spec.host
    return "::1" if address.version == 6 else "127.0.0.1"


def _listen(spec: FederationSpec) -> str:
    """The loopback address if the host is one, else all interfaces."""
    host = local_host(spec)
    if host == spec.host:
        return spec.address
    return f"[::]:{spec.port}" if host == "::1" else str(spec.port)
