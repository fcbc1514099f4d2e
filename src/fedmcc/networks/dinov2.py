"""DINOv2-small (Oquab et al., 2024), fetched once from the Hugging Face hub."""

import logging
from dataclasses import dataclass
from pathlib import Path

from fedmcc.data.cache import cache_folder
from fedmcc.networks.hub import fetch
from fedmcc.networks.huggingface import HuggingFaceOptions

MODEL, COMMIT = "facebook/dinov2-small", "ed25f3a31f01632728cabb09d1542f84ab7b0056"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DinoV2Small(HuggingFaceOptions):
    """DINOv2-small, trained on photographs without labels: 22 million parameters, 384 features."""

    sha256: str = "a4ced963592a7f08baef7f166f3da65b7ac44f6940057b2f904495e9565769a7"

    def image_size(self) -> int:
        """Side of the images that the encoder takes."""
        return 224

    @property
    def fetched(self) -> Path:
        """The folder of the download."""
        return cache_folder() / "encoders" / MODEL.rpartition("/")[2]

    def _folder(self) -> Path:
        """The folder with the files; without `path` it is in the cache, and fetched if absent."""
        if self.path is not None:
            return super()._folder()
        if not self.fetched.exists():
            log.info("Downloading %s, 88 MB, once, to %s.", MODEL, self.fetched)
            fetch(MODEL, COMMIT, self.fetched, self.sha256)
        return self.fetched
