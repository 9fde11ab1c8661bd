"""The result of a diagnosis: estimates, a recommendation, and both as text and for JSON."""

from __future__ import annotations

import functools
from typing import Any, final

from gradhomog.diagnosis import estimates
from gradhomog.diagnosis.measurement import Measurement
from gradhomog.diagnosis.recommendation import Recommendation, recommend
from gradhomog.diagnosis.table import render


@final
class DiagnosisResult(Measurement):
    """The result of `gradhomog.Diagnosis`: the fields of the measurement, and a recommendation.

    Estimates have `value`, `low` and `high`, the ends of a 95 % interval, as float64 tensors: scalars, `[tasks]` or
    `[tasks, tasks]`. NaN is undefined or unresolved. The main ones: `expected.cosines`, `expected.signal_fractions`,
    `norm_ratios`, `step.cosines`, `noise.noise_scales`, `noise.step_noise_scale`, `noise.correlations`,
    `single.conflict_rates` and `single.independent_conflict_rates`.
    """

    @functools.cached_property
    def recommendation(self) -> tuple[Recommendation, ...]:
        """Sentences with a code each, the most important first; the codes are documented in the guide."""
        return recommend(self)

    def table(self) -> str:
        """Return estimates by task and by pair of tasks, and the recommendation, as aligned text."""
        return render(self, self.recommendation)

    def record(self) -> dict[str, Any]:
        """Return everything for JSON, in plain lists; NaN and infinity are None."""
        return {
            "tasks": list(self.tasks),
            "batches": self.batches,
            "params": self.params,
            "columns": self.columns,
            "batch_size": self.batch_size,
            "cosine_error": self.cosine_error,
            "single": estimates.record(self.single),
            "expected": estimates.record(self.expected),
            "norm_ratios": self.norm_ratios.record(),
            "step": self.step.record(),
            "noise": self.noise.record(),
            "recommendation": [{"code": one.code, "text": one.text} for one in self.recommendation],
        }
