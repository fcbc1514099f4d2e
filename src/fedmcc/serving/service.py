"""The state of the service: the network of a run, its clusters, and the user's corrections."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.report.refresh import refresh
from fedmcc.report.thumbnails import thumbnail
from fedmcc.runs import corrections
from fedmcc.runs.clusters import Edits
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import Predictor
from fedmcc.serving.catalogue import Order, load_catalogue, load_run_images
from fedmcc.serving.limits import Limits
from fedmcc.serving.schemas import ClusterSummary, MemberPage, Prediction, RunSummary
from fedmcc.serving.uploads import RefusedError, decode_upload

log = logging.getLogger(__name__)


class Service:
    """Answers requests about one run; its methods may be called from several threads."""

    def __init__(self, run: Run, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self._predictor = Predictor.load(run)
        self._predictor.net.eval()
        self._images, self._notice = load_run_images(run)
        self._catalogue = load_catalogue(run, self._images)
        self._network_lock, self._edit_lock = threading.Lock(), threading.Lock()
        self._refresher = ThreadPoolExecutor(1, thread_name_prefix="refresh")
        self._pending = 0  # refreshes that were asked for and did not end yet
        self._summaries: list[ClusterSummary] | None = None

    def summary(self) -> RunSummary:
        """The run that is served, and what the service accepts."""
        (height, width), channels = self._predictor.target
        assignments = self._catalogue.assignments
        return RunSummary(
            run=self.run.path.resolve().name,
            fedmcc=version("fedmcc"),
            images=0 if assignments is None else len(assignments),
            clusters=len(self._catalogue.clusters),
            height=height,
            width=width,
            channels=channels,
            max_bytes=self.limits.max_bytes,
            max_pixels=self.limits.max_pixels,
            max_files=self.limits.max_files,
            shows_images=self._catalogue.images is not None,
            updating=self._pending > 0,
            notice=self._notice,
        )

    def clusters(self) -> list[ClusterSummary]:
        """All clusters with their most typical images."""
        with self._edit_lock:
            if self._summaries is None:
                self._summaries = self._catalogue.summaries()
            return self._summaries

    def members(self, cluster: int, order: Order, start: int, count: int) -> MemberPage:
        """Some images of a cluster."""
        catalogue = self._catalogue
        if cluster not in catalogue.clusters:
            raise RefusedError(404, f"There is no cluster {cluster}: reload the page.")
        rows = catalogue.rows(cluster, order)
        return MemberPage(len(rows), catalogue.members(rows[start : start + count]))

    def classify(self, content: bytes) -> Prediction:
        """The cluster of an image file."""
        pixels = decode_upload(content, self._predictor.target, self.limits)
        with self._network_lock:
            assignment, catalogue = self._predictor.assign(ImageSet(pixels[None])), self._catalogue
        number = int(assignment.clusters[0])
        cluster, judgement = catalogue.clusters[number], assignment.judgement
        confidence = None if assignment.confidence is None else round(float(assignment.confidence[0]), 4)
        return Prediction(
            cluster=number,
            title=cluster.title,
            colour=cluster.colour,
            confidence=confidence,
            second=None if judgement is None else int(judgement.second[0]),
            distance=None if judgement is None else round(float(judgement.distance[0]), 4),
            outlier=None if judgement is None else bool(judgement.outlier[0]),
            thumbnail=thumbnail(np.asarray(pixels)),
        )

    def rename(self, cluster: int, name: str) -> list[ClusterSummary]:
        """Name a cluster, as `fedmcc name` does."""
        with self._edit_lock:
            self._change(corrections.name_cluster(self.run, cluster, name))
        return self.clusters()

    def merge(self, cluster: int, others: Sequence[int]) -> list[ClusterSummary]:
        """Merge clusters into one, as `fedmcc merge` does."""
        if not others:
            raise InputError("No other cluster is given: give one or more.")
        with self._edit_lock:
            self._change(corrections.merge_clusters(self.run, cluster, others))
        return self.clusters()

    def close(self) -> None:
        """Wait until the tables and the report have the last correction."""
        self._refresher.shutdown(wait=True)

    def _change(self, edits: Edits) -> None:
        with self._network_lock:
            self._predictor = replace(self._predictor, edits=edits)
            self._catalogue, self._summaries = load_catalogue(self.run, self._images), None
        self._pending += 1
        self._refresher.submit(self._refresh)

    def _refresh(self) -> None:
        """Write tables and report again, once after the last of several quick corrections."""
        try:
            if self._pending == 1:
                self._notice = refresh(self.run).warning or self._notice
        except Exception:  # a thread without a caller: the correction itself is stored
            log.exception("The tables and the report of %s could not be written.", self.run.path)
            self._notice = "assignments.csv and the report could not be written again: see the log."
        finally:
            with self._edit_lock:
                self._pending -= 1
                self._catalogue, self._summaries = load_catalogue(self.run, self._images), None
