"""Measurements of a run for Prometheus, in its text format, on 127.0.0.1 only.

They are read from the run directory whenever somebody asks; deploy/grafana.json is a dashboard of them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from fedmcc.errors import InputError
from fedmcc.runs.directory import Row, Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """A measurement, with a value for each set of labels."""

    name: str
    kind: str  # counter or gauge
    help: str
    values: Mapping[Labels, float]

    def lines(self) -> list[str]:
        """The measurement in the text format."""
        full = f"fedmcc_{self.name}"
        head = [f"# HELP {full} {self.help}", f"# TYPE {full} {self.kind}"]
        return head + [f"{full}{_labels(labels)} {value!r}" for labels, value in self.values.items()]


@contextmanager
def serving_metrics(run: Run, port: int | None) -> Iterator[None]:
    """Answer requests for /metrics on 127.0.0.1 while the block runs; not at all without a port."""
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Requests, run))
    except (OSError, OverflowError):
        raise InputError(f"Port {port} is in use or invalid: choose another --metrics-port.") from None
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Requests(BaseHTTPRequestHandler):
    """Answers GET /metrics."""

    def __init__(self, run: Run, *arguments: Any) -> None:
        self.run = run
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send the measurements."""
        if self.path != "/metrics":
            self.send_error(404)
            return
        text = render(self.run, time.time()).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


def render(run: Run, now: int | float) -> str:
    """All measurements of a run in the text format of Prometheus; `now` is `time.time()`."""
    rows = run.committed_rows()
    metrics = [*_totals(rows), *_per_site(rows)]
    if rows:
        metrics += [
            *_last(rows[-1]),
            _gauge("last_round_age_seconds", "Age of the last round.", _age(run, now)),
        ]
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _totals(rows: Sequence[Row]) -> Iterator[Metric]:
    yield _counter("rounds_total", "Rounds that are complete.", len(rows))
    for name, text in (("refused", "Refused updates."), ("dropped", "Missing updates.")):
        yield _counter(f"{name}_total", text, sum(len(row.get(name, ())) for row in rows))
    sums = {"sent": "bytes_down", "received": "bytes_up"}
    values: dict[Labels, float] = {
        (("direction", key),): float(sum(row.get(name, 0) for row in rows)) for key, name in sums.items()
    }
    yield Metric("bytes_total", "counter", "Bytes of updates and tasks, as the server counts.", values)


def _last(row: Row) -> Iterator[Metric]:
    yield _gauge("participants", "Updates in the last round.", len(row["participants"]))
    yield _gauge("round_seconds", "Duration of the last round.", row["seconds"])
    if row["loss"] is not None:
        yield _gauge("loss", "Mean loss of the last round.", row["loss"])
    stage: Labels = (("stage", row["stage"]),)
    yield Metric("stage_round", "gauge", "Rounds of the current stage.", {stage: float(row["round"])})


def _per_site(rows: Sequence[Row]) -> Iterator[Metric]:
    rounds: dict[str, int] = {}
    for row in rows:
        for client, name in row.get("sites", {}).items():
            rounds[name] = rounds.get(name, 0) + (int(client) in row["participants"])
    if rounds:
        values: dict[Labels, float] = {
            (("site", name),): float(count) for name, count in sorted(rounds.items())
        }
        yield Metric("site_rounds_total", "counter", "Rounds with an update of the site.", values)


def _age(run: Run, now: int | float) -> float:
    return max(0.0, now - run.metrics_file.stat().st_mtime)


def _counter(name: str, text: str, value: int | float) -> Metric:
    return Metric(name, "counter", text, {(): float(value)})


def _gauge(name: str, text: str, value: int | float) -> Metric:
    return Metric(name, "gauge", text, {(): float(value)})


def _labels(labels: Labels) -> str:
    """Labels in the text format; the names of sites and stages need no escapes."""
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
