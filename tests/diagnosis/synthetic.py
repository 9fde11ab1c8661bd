"""Rows with known expectations and covariances."""

import torch

import gradhomog
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


def means(*rows: tuple[float, ...], params: int) -> torch.Tensor:
    """Expected rows `[tasks, params]`, float64, given by their first entries."""
    found = torch.zeros(len(rows), params, dtype=torch.float64)
    found[:, : len(rows[0])] = torch.tensor(rows, dtype=torch.float64)
    return found


def draw(mean: torch.Tensor, batches: int, seed: int, noise: float = 1.0, shared: float = 0.0) -> torch.Tensor:
    """Rows `[batches, tasks, params]`: noise of standard deviation `noise`, and noise that all tasks share."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(batches, *mean.shape, generator=generator, dtype=torch.float64)
    common = torch.randn(batches, 1, mean.shape[1], generator=generator, dtype=torch.float64)
    return mean + noise * own + shared * common


def gramian(*arguments, **options) -> LabelledGramian:
    return LabelledGramian.of_rows(draw(*arguments, **options))


def fed(rows, names=None, **options) -> gradhomog.DiagnosisResult:
    """The diagnosis of batches of rows."""
    diagnosis = gradhomog.Diagnosis(names, **options)
    for batch in rows:
        diagnosis.add(batch)
    return diagnosis.result()


def opposed_batches() -> torch.Tensor:
    """Rows `[3, 2, 4]` with inner products of −1/2 in any two batches: squared norms with wholly negative intervals."""
    angles = 2 * torch.pi / 3 * torch.arange(3, dtype=torch.float64)
    rows = torch.zeros(3, 2, 4, dtype=torch.float64)
    rows[:, 0, :2] = rows[:, 1, 2:] = torch.stack([angles.cos(), angles.sin()], dim=1)
    return rows
