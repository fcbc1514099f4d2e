"""What `fedmcc list methods` prints about a method: group, publication, requirements and cost."""

from dataclasses import dataclass
from typing import Literal, get_args

Group = Literal["this paper", "federated representation", "centralized deep clustering", "classical"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True)
class About:
    """Where a method was published and what it needs; a method has one as its class attribute `about`."""

    group: Group
    publication: str
    year: int
    needs: str = ""  # besides images and views
    features_only: bool = False  # a clustering follows, by default the default one
    cost: float | None = None  # operations of an epoch relative to mcc, by the settings of the small scale

    @property
    def summary(self) -> str:
        """Publication, year, requirements and cost on one line."""
        parts = [f"{self.publication} {self.year}"]
        parts += ["learns features, which a clustering follows"] if self.features_only else []
        parts += [f"needs {self.needs}"] if self.needs else []
        parts += [f"{self.cost:.2g} times the operations of mcc"] if self.cost is not None else []
        return "; ".join(parts)
