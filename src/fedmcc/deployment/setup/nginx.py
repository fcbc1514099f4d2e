"""Configures nginx in front of Flower's server: it forwards requests of sites and blocks run control."""

import ipaddress
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmcc.deployment.setup.certificates import public_key_pem
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.errors import InputError

MAX_PIECE_BYTES = 5 * 2**20 + 2**19  # Flower sends arrays in pieces of 5 MiB; our facts are below 0.5 MiB
MAX_ANNOUNCEMENT_BYTES = 2**20  # lists the ids of the pieces of an update, about 70 bytes each
MAX_REQUEST_BYTES = 2**14  # of all other requests: ids, and at most a public key
MAX_SITE_CONNECTIONS = 8  # requests of one key at the same time; Flower's client sends up to 6

# The requests that Flower's client sends with a registered key, by the size of their bodies.
REQUESTS = {
    ("push-object",): MAX_PIECE_BYTES,
    ("push-messages",): MAX_ANNOUNCEMENT_BYTES,
    (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "get-run",
        "get-fab",
    ): MAX_REQUEST_BYTES,
}

TEMPLATE = """# Written by fedmcc at every start of the server: do not edit.
# Sites can reach Flower's fleet interface only. The control interface, which starts runs on every site,
# is reachable from this machine only.
daemon off;
worker_processes 2;
worker_shutdown_timeout 60s;
pid "{server}/nginx.pid";
error_log "{server}/logs/proxy.log" warn;

events {{ worker_connections 1024; }}

http {{
    # The registered public keys as Flower's client sends them. Flower itself parses a body before it checks
    # the key: a request with any other key must not reach it.
    map_hash_bucket_size 1024;
    map_hash_max_size 8192;
    map $http_flwr_public_key $site {{
        default "";
{keys}
    }}

    log_format refused '$time_iso8601 $remote_addr "$request_method $request_uri" $status $site';
    map $status $refused {{ ~^[23] 0; 429 0; default 1; }}
    access_log "{server}/logs/refused.log" refused if=$refused;
    server_tokens off;
    default_type text/plain;

    client_body_temp_path "{server}/proxy/body";
    proxy_temp_path "{server}/proxy/proxy";
    fastcgi_temp_path "{server}/proxy/fastcgi";
    uwsgi_temp_path "{server}/proxy/uwsgi";
    scgi_temp_path "{server}/proxy/scgi";

    # Requests of sites, by key: above the rate they wait, above the number they are repeated by the client.
    limit_conn_zone $site zone=site_connections:1m;
    limit_req_zone $site zone=site_requests:1m rate=500r/s;
    # Requests that are refused, by address and in total: above the rate they are not logged.
    limit_conn_zone $binary_remote_addr zone=refused_connections:2m;
    limit_req_zone $binary_remote_addr zone=refused_requests:2m rate=5r/s;
    limit_conn_zone $server_port zone=all_refused_connections:1m;
    limit_req_zone $server_port zone=all_refused_requests:1m rate=50r/s;
    limit_req_log_level info;
    limit_conn_log_level info;
    limit_conn_status 503;
    limit_req_status 503;

    upstream flower {{
        server 127.0.0.1:{control_port};
        keepalive 32;
    }}

    server {{
        listen {listen} ssl;
        ssl_certificate "{server}/server.crt";
        ssl_certificate_key "{server}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;

        client_header_timeout 10s;
        client_body_timeout 30s;
        send_timeout 30s;
        keepalive_timeout 30s;
        lingering_time 5s;
        lingering_timeout 2s;
        reset_timedout_connection on;
        client_header_buffer_size 2k;
        large_client_header_buffers 4 4k;
        client_body_buffer_size 16k;
        client_max_body_size {largest};

        proxy_read_timeout 60s;
        proxy_send_timeout 30s;
        proxy_request_buffering off;  # do not write updates to the proxy's disk
        proxy_buffering off;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host localhost;
        proxy_set_header flwr-public-key $http_flwr_public_key;  # the one that was looked up
        proxy_ssl_name localhost;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate "{server}/loopback/ca.crt";
{locations}
        location = /unregistered {{
            internal;
            {refusal}
            error_page 403 = @unregistered;
        }}

        location @unregistered {{
            default_type application/json;
            # As Flower answers; 401 would end its client without a reason in the log of the site.
            if ($request_uri = /v1/fleet/activate-node) {{ return 412 '{unregistered}'; }}
            return 401 '{unregistered}';
        }}

        location / {{
            {refusal}
            error_page 403 = @forbidden;
        }}

        location @forbidden {{ return 403 "Only requests from sites are allowed here.\\n"; }}
    }}
}}
"""

LOCATION = """
        location ~ ^/v1/fleet/({names})$ {{
            if ($site = "") {{ rewrite ^ /unregistered last; }}
            limit_except POST {{ deny all; }}
            limit_conn site_connections {connections};
            limit_req zone=site_requests burst={burst};
            client_max_body_size {size};
            proxy_pass https://flower$uri;  # the normalised path that was matched, not the one in the request
        }}
"""

UNREGISTERED = {"code": 2004, "detail": "The public key is not registered."}  # Flower's code for this error

# In the access phase, so that the limits are applied before: `return` would skip them.
REFUSAL = """limit_conn refused_connections 16;
            limit_conn all_refused_connections 128;
            limit_req zone=refused_requests burst=40 nodelay;
            limit_req zone=all_refused_requests burst=200 nodelay;
            limit_conn_status 429;
            limit_req_status 429;
            error_log "{server}/logs/proxy.log" crit;
            deny all;"""


def render_configuration(operator: OperatorFolder, spec: FederationSpec) -> str:
    """The nginx configuration of a federation."""
    server = str(operator.server)
    if any(character in server for character in '"$\\\n'):
        raise InputError(
            f"nginx cannot read the path {server}: choose one without quotes, $ and backslashes."
        )
    return TEMPLATE.format(
        server=server,
        control_port=spec.control_port,
        listen=_listen(spec),
        keys="\n".join(_key_lines(operator, spec)),
        largest=max(REQUESTS.values()),
        locations="".join(_location(names, size) for names, size in REQUESTS.items()),
        refusal=REFUSAL.format(server=server),
        unregistered=json.dumps(UNREGISTERED),
    )


def public_key_header(path: Path) -> str:
    """The value of the header `flwr-public-key` in the requests of a site with this public key."""
    return b64encode(public_key_pem(path)).decode()


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


def _key_lines(operator: OperatorFolder, spec: FederationSpec) -> Iterator[str]:
    """A line of the map for each site that has a public key."""
    for site in spec.sites:
        if (path := operator.public_key(site)).exists():
            yield f'        "{public_key_header(path)}" "{site}";'


def _location(names: Sequence[str], size: int) -> str:
    burst = 2 * MAX_SITE_CONNECTIONS  # never exceeded: all requests above the rate wait
    return LOCATION.format(names="|".join(names), size=size, connections=MAX_SITE_CONNECTIONS, burst=burst)
