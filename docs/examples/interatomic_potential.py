"""Train a small interatomic potential on energies, forces and stresses, whose losses have three units.

The reference is the Stillinger-Weber potential of silicon; each structure is a strained cell of eight displaced atoms.
Compares the sum of the losses, 16 pairs of weights, and methods without weights; validation chooses the pair, and the
learning rate of each.

    python docs/examples/interatomic_potential.py                              # the tables
    python docs/examples/interatomic_potential.py --methods auto --seeds 0     # one run for each learning rate
"""

import argparse
import time
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

import gradhomog

TASKS = ["energy", "forces", "stress"]  # eV/atom, eV/Å, eV/Å³
ATOMS, NEIGHBORS, LATTICE, CUTOFF = 8, 24, 5.431, 3.77118  # Å; 24 images are more than have ever been inside the cutoff
GRID = {  # the forces have weight 1
    f'static(weights={{"energy": {energy:g}, "stress": {stress:g}, "forces": 1}})': f"weights {energy:g}, 1, {stress:g}"
    for energy, stress in product([1, 0.1, 10, 100], [1, 100, 1000, 10000])
}
METHODS = [*GRID, "auto", "reweight(beta=0, solver='fixed_point')"]


def moments(f: Tensor, unit: Tensor) -> list[Tensor]:
    """Σ f, |Σ f u|² and |Σ f u uᵀ|² over neighbors with radial functions f and unit vectors u, `[..., functions]`."""
    vector = torch.einsum("...kf,...ki->...fi", f, unit)
    tensor = torch.einsum("...kf,...ki,...kj->...fij", f, unit, unit)
    return [f.sum(-2), vector.square().sum(-1), tensor.square().sum((-2, -1))]


def stillinger_weber(d: Tensor) -> Tensor:
    """The energies of atoms from the vectors to their neighbors, `[..., neighbors, 3]` (Phys. Rev. B 31, 5262)."""
    epsilon, sigma, a, b, three, decay = 2.1683, 2.0951, 7.049556277, 0.6022245584, 21.0, 1.2
    r = d.norm(dim=-1).clamp(max=CUTOFF - 1e-3)  # there, both exponentials are 0
    tail = (sigma / (r - CUTOFF)).clamp(min=-700)
    pairs = 0.5 * epsilon * a * (b * (sigma / r) ** 4 - 1) * tail.exp()
    g, unit = (decay * tail).exp(), d / d.norm(dim=-1, keepdim=True)
    # Σ_jk g_j g_k (cos + 1/3)² from moments, without the terms j = k; each angle occurs twice
    count, vector, tensor = (moment[..., 0] for moment in moments(g[..., None], unit))
    angles = tensor + 2 / 3 * vector + count.square() / 9 - 16 / 9 * g.square().sum(-1)
    return pairs.sum(-1) + 0.5 * epsilon * three * angles


class Potential(nn.Module):
    """The energies of atoms by a network on 24 invariants: radial functions, and their vector and tensor moments."""

    def __init__(self, radial: int = 8, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(1.8, CUTOFF, radial))
        self.layers = nn.Sequential(
            nn.Linear(3 * radial, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, d: Tensor) -> Tensor:
        r = d.norm(dim=-1, keepdim=True)
        inside = 0.5 + 0.5 * (torch.pi * (r / CUTOFF).clamp(max=1)).cos()
        f, unit = inside * (-8 * (r - self.centers).square()).exp(), d / r
        return self.layers(torch.cat(moments(f, unit), -1))[..., 0]


def neighbors(x: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and shifts of the nearest images of atoms in periodic cells, `[structures, atoms, 24]` and `[..., 3]`."""
    shifts = torch.tensor([*product((-1, 0, 1), repeat=3)], dtype=x.dtype) @ cells
    images = x[:, None, :, None] + shifts[:, None, None] - x[:, :, None, None]  # [structures, atoms, atoms, 27, 3]
    distances = images.norm(dim=-1).flatten(2)
    nearest = distances.masked_fill(distances < 1e-6, torch.inf).topk(NEIGHBORS, largest=False).indices
    index = nearest // 27
    return index, shifts.gather(1, (nearest % 27).flatten(1)[..., None].expand(-1, -1, 3)).view(*index.shape, 3)


def properties(
    potential: Callable[[Tensor], Tensor], x: Tensor, cells: Tensor, index: Tensor, shifts: Tensor, graph: bool = False
) -> list[Tensor]:
    """Energy per atom, forces −∂E/∂x, and stress ∂E/∂strain / volume; differentiable w.r.t. parameters with `graph`."""
    x, strain = x.detach().requires_grad_(), x.new_zeros(len(x), 1, 3, 3).requires_grad_()
    d = x.gather(1, index.flatten(1)[..., None].expand(-1, -1, 3)).view(shifts.shape) + shifts - x[:, :, None]
    energies = potential(d + d @ strain).sum(1)
    slopes = torch.autograd.grad(energies.sum(), [x, strain], create_graph=graph)
    return [energies / ATOMS, -slopes[0], slopes[1][:, 0] / torch.linalg.det(cells)[:, None, None]]


def structures(count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Positions, cells, neighbors, and the reference's properties, in float32."""
    random = torch.Generator().manual_seed(seed)
    corners = torch.tensor([(0, 0, 0), (0, 2, 2), (2, 0, 2), (2, 2, 0)])
    sites = torch.cat([corners, corners + 1]).double() / 4
    noise = 0.03 * torch.randn(count, 3, 3, generator=random, dtype=torch.float64)
    cells = LATTICE * (torch.eye(3) + (noise + noise.mT) / 2)
    x = sites @ cells + 0.08 * torch.randn(count, ATOMS, 3, generator=random, dtype=torch.float64)
    inputs = [x, cells, *neighbors(x, cells)]
    targets = [y.detach().float() for y in properties(stillinger_weber, *inputs)]
    return [part if part.dtype == torch.int64 else part.float() for part in inputs], targets


def train(method: str, rate: float, seed: int, steps: int) -> np.ndarray:
    """Errors of energy, forces, stress, and their mean, on validation and test structures; and the time of a step.

    An error is a root mean squared error, relative to that of the mean training energy, of zero forces and zero stress.
    """
    parts = [structures(count, 3 * seed + number) for number, count in enumerate((64, 64, 256))]
    inputs, targets = parts[0]
    means = [float(targets[0].mean()), 0.0, 0.0]
    torch.manual_seed(seed)
    model, pipe = Potential(), gradhomog.pipeline(method)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    start = time.process_time()
    for _ in range(steps):
        batch = torch.randint(len(inputs[0]), (8,))
        found = properties(model, *(part[batch] for part in inputs), graph=True)
        losses = {
            name: (prediction + mean - target[batch]).square().mean()
            for name, prediction, mean, target in zip(TASKS, found, means, targets, strict=True)
        }
        optimizer.zero_grad()
        gradhomog.backward(losses, pipe, parameters=model)
        optimizer.step()
        schedule.step()
    seconds, rows = time.process_time() - start, []
    for inputs, targets in parts[1:]:
        found = [y.detach() for y in properties(model, *inputs)]
        errors = [
            float(((prediction + mean - target).square().mean() / (mean - target).square().mean()).sqrt())
            for prediction, mean, target in zip(found, means, targets, strict=True)
        ]
        rows.append([*errors, float(np.mean(errors)), seconds / steps])
    return np.array(rows)


def label(method: str) -> str:
    return GRID.get(method, method)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.01, 0.03])
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rows = {}  # [seeds, validation and test, columns]
    for method in options.methods:
        trials = [
            np.array([train(method, rate, seed, options.steps) for seed in options.seeds]) for rate in options.rates
        ]
        best = min(range(len(trials)), key=lambda number: trials[number][:, 0, 3].mean())
        rows[method] = trials[best]
        print(label(method), f"rate {options.rates[best]:g}", rows[method].mean(0).round(4).tolist(), flush=True)
    grid = [method for method in rows if method in GRID] or [*rows]
    tuned = min(grid, key=lambda method: rows[method][:, 0, 3].mean())
    lowest = np.min([rows[method][:, 1, :4].mean(0) for method in grid], axis=0)
    print(f"chosen: {label(tuned)}; lowest test errors of the grid: {lowest.round(4)}")
    for method in rows if len(options.seeds) > 1 else []:
        if method in (grid[0], tuned) or method not in GRID:
            test, difference = rows[method][:, 1], (rows[method] - rows[tuned])[:, 1, 3:4]
            values = np.concatenate([test[:, :4], difference], axis=1)
            half = student.ppf(0.975, len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
            cells = [f"{value:.4f} ± {width:.4f}" for value, width in zip(values.mean(0), half, strict=True)]
            ratios = ", ".join(f"{ratio:.2f}" for ratio in test[:, :4].mean(0) / lowest)
            print(f"| {label(method)} | {' | '.join(cells)} | {ratios} | {1000 * test[:, 4].mean():.1f} ms |")


if __name__ == "__main__":
    main()
