"""The estimates of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

from gradhomog.diagnosis.estimates import TransformedEstimate
from gradhomog.diagnosis.expected_gradients import ExpectedGradients
from gradhomog.diagnosis.noise import Noise
from gradhomog.diagnosis.single_rows import SingleRows
from gradhomog.diagnosis.step_alignment import StepAlignment


@dataclass(frozen=True, eq=False)
class Measurement:
    """Estimates about the rows of K tasks (or of tasks from K domains) over B batches.

    Attributes:
        tasks: the names of the K tasks or domains, in the order of all estimates.
        batches: B.
        params: number of parameters of a row.
        columns: numbers per stored row; smaller than `params` if rows were sketched.
        batch_size: examples per task and batch; None if unknown.
        single: means over single rows, as a method receives them: signal and noise together.
        expected: estimates about the expected gradients, without noise.
        norm_ratios: ratios of norms of expected gradients `[K, K]`, row over column.
        step: alignment of expected gradients with their mean, the plain step.
        noise: estimates about the noise.
        parallel: True if the rows of every batch are multiples of one gradient.
        summed: tasks whose row is a multiple of the sum of the others.
    """

    tasks: tuple[str, ...]
    batches: int
    params: int
    columns: int
    batch_size: int | None
    single: SingleRows
    expected: ExpectedGradients
    norm_ratios: TransformedEstimate
    step: StepAlignment
    noise: Noise
    parallel: bool
    summed: tuple[str, ...]

    @property
    def cosine_error(self) -> float:
        """Bound of the standard deviation of a cosine by the sketch of the rows; 0 if rows are stored exactly."""
        return (2 / self.columns) ** 0.5 if self.columns < self.params else 0.0
