"""The conflict of domains at one point of training: single rows and expected gradients after each homogenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradhomog.conflict import distance_bound, distances
from gradhomog.diagnosis import estimates
from gradhomog.diagnosis.expected_gradients import ExpectedGradients, expected_gradients
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.single_rows import SingleRows, single_rows


@dataclass(frozen=True, eq=False)
class StageConflict:
    """Rows after one homogenizer.

    Attributes:
        name: the homogenizer; `"plain"` for rows without homogenizers.
        single: means over single rows.
        expected: estimates about their expectations.
        largest_norm, largest_distance: of all rows, and of all pairs of rows.
    """

    name: str
    single: SingleRows
    expected: ExpectedGradients
    largest_norm: float
    largest_distance: float

    @classmethod
    def of(cls, name: str, gramian: LabelledGramian) -> StageConflict:
        products = gramian.gramian
        largest = float(products.diagonal().max()) ** 0.5, float(distances(products).max())
        return cls(name, single_rows(gramian), expected_gradients(gramian), *largest)

    @property
    def bound(self) -> float:
        """The corrected bound of Theorem 4.1 on the distance of two domains of different images: 2 G.

        Such domains have total variation 1, for which the first-order bound depends neither on the smoothness nor on
        the inner loop. G is estimated by the largest norm of a measured row, which includes the factors of
        differentiation through an inner loop. The bound then is the triangle inequality: no measurement can violate
        it, and the ratio of a distance to it reports how far the rows are from opposite.
        """
        return float(distance_bound(1.0, gradient_bound=self.largest_norm, smoothness=0, inner_lr=0, inner_steps=0))

    def record(self) -> dict[str, Any]:
        """Return the measurement for JSON."""
        return {
            "name": self.name,
            "single": estimates.record(self.single),
            "expected": estimates.record(self.expected),
            "largest_norm": self.largest_norm,
            "largest_distance": self.largest_distance,
            "bound": self.bound,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StageConflict:
        """Return the measurement of `record`."""
        single = estimates.from_record(SingleRows, record["single"])
        expected = estimates.from_record(ExpectedGradients, record["expected"])
        return cls(record["name"], single, expected, record["largest_norm"], record["largest_distance"])


@dataclass(frozen=True, eq=False)
class DomainConflict:
    """The conflict of K domains at one point of training.

    Attributes:
        step: number of training steps before the measurement.
        domains: names `[K]`, in the order of all matrices.
        batches: number of batches that were measured.
        stages: `plain`, then the homogenizers in order.
    """

    step: int
    domains: tuple[str, ...]
    batches: int
    stages: tuple[StageConflict, ...]

    def record(self) -> dict[str, Any]:
        """Return the measurement for JSON."""
        stages = [stage.record() for stage in self.stages]
        return {"step": self.step, "domains": list(self.domains), "batches": self.batches, "stages": stages}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DomainConflict:
        """Return the measurement of `record`."""
        stages = tuple(map(StageConflict.from_record, record["stages"]))
        return cls(record["step"], tuple(record["domains"]), record["batches"], stages)
