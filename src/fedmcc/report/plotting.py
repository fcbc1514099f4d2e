"""matplotlib figures as files that are identical whenever the data are; matplotlib is optional."""

import io
from typing import TYPE_CHECKING, Any

from fedmcc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPRODUCIBLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedmcc",  # identifiers are random otherwise
}


def require_matplotlib() -> None:
    """Raise InputError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("Figures need matplotlib: install it with pip install 'fedmcc[figures]'.") from None


def new_figure(size: tuple[float, float] | None = None) -> "Figure":
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def png_mark(software: str) -> bytes:
    """The bytes in a PNG file that say which software wrote it."""
    return b"tEXtSoftware\0" + software.encode()


def file_content(figure: "Figure", kind: str, dpi: int | None = None, software: str | None = None) -> bytes:
    """The figure as the content of an SVG or PNG file, which can say which software wrote it."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata = {"Date": None, "Source": software} if kind == "svg" else {"Software": software or "fedmcc"}
    with rc_context(REPRODUCIBLE):
        figure.savefig(buffer, format=kind, dpi=dpi or "figure", metadata=metadata)
    return buffer.getvalue()
