"""Directions of several steps equal TorchJD's aggregators and scalarizations where these are exact."""

import pytest
import torch
import torchjd.aggregation as theirs
from torchjd import scalarization
from torchjd.aggregation import AlignedMTLWeighting, CRMOGMWeighting, GramianWeightedAggregator
from torchjd.linalg import QuadprogProjector

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses
from tests.plugins.rows import normal

EXACT, ITERATED = 1e-9, 1e-3
WEIGHTS, FIVE = "[1, 5, 0, 2, 2]", torch.tensor([0.1, 0.5, 0.0, 0.2, 0.2], dtype=torch.float64)
AGGREGATORS = {
    **{f"aligned_mtl(scale_mode='{m}')": (lambda m=m: theirs.AlignedMTL(scale_mode=m), EXACT)
       for m in ("min", "median", "rmse")},
    "cagrad(c=0.5, scale='paper')": (lambda: theirs.CAGrad(c=0.5), ITERATED),
    "config(scale='paper')": (theirs.ConFIG, EXACT),
    **{f"cr_mogm(method='aligned_mtl', alpha={a})": (
        lambda a=a: GramianWeightedAggregator(CRMOGMWeighting(AlignedMTLWeighting(), alpha=a)), EXACT
    ) for a in (0.0, 0.7, 1.0)},
    "fairgrad(alpha=0.5, scale='paper')": (lambda: theirs.FairGrad(alpha=0.5), ITERATED),
    "fairgrad(alpha=2.0, scale='paper')": (lambda: theirs.FairGrad(alpha=2.0), ITERATED),
    "krum(n_byzantine=1, n_selected=3, squared=false)": (lambda: theirs.Krum(n_byzantine=1, n_selected=3), 1e-7),
    "imtl_g": (theirs.IMTLG, EXACT),
    "pcd(tau=0.2, beta=0.8)": (lambda: theirs.PCD(tau=0.2, beta=0.8, eps=0.0), EXACT),
    "trimmed_mean(trim=1)": (lambda: theirs.TrimmedMean(1), EXACT),
    "upgrad": (lambda: theirs.UPGrad(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)), 1e-6),
    "dualproj": (lambda: theirs.DualProj(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)), 1e-6),
    f"aligned_mtl(weights={WEIGHTS})": (lambda: theirs.AlignedMTL(FIVE), EXACT),
    f"config(weights={WEIGHTS}, scale='paper')": (lambda: theirs.ConFIG(FIVE), EXACT),
    f"upgrad(weights={WEIGHTS})": (lambda: theirs.UPGrad(FIVE, QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)), 1e-6),
    f"dualproj(weights={WEIGHTS})": (
        lambda: theirs.DualProj(FIVE, QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)), 1e-6
    ),
}  # fmt: skip
# Those for two tasks draw no order, or need no more than one step of their solver.
OF_TWO_ROWS = {
    "gradvac(beta=0.3, scale='paper')": (lambda: theirs.GradVac(beta=0.3, eps=0.0), 1e-6),
    "mgda": (lambda: theirs.MGDA(epsilon=1e-9, max_iters=10_000), 1e-6),
    "pcgrad(scale='paper')": (theirs.PCGrad, 1e-6),
}


@pytest.mark.parametrize("text", [*AGGREGATORS, *OF_TWO_ROWS])
def test_directions_of_several_steps_are_those_of_the_aggregator(text):
    tasks = 2 if text in OF_TWO_ROWS else 5
    make, tolerance = (OF_TWO_ROWS if text in OF_TWO_ROWS else AGGREGATORS)[text]
    pipe, aggregator = gradhomog.pipeline(text), make()
    spread = 0 if tolerance == ITERATED else 1 if tasks == 5 else 0.2
    for seed in range(6 if tasks == 5 else 30):
        rows = normal(tasks, 20, seed=seed) * torch.logspace(-spread, spread, tasks, dtype=torch.float64)[:, None]
        torch.testing.assert_close(pipe.combine(rows), aggregator(rows), rtol=tolerance, atol=0.1 * tolerance)


PREFERENCE, IDEAL = (torch.tensor(values, dtype=torch.float64) for values in ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0, 0.3]))
EQUAL = torch.full((4,), 0.25, dtype=torch.float64)
# Penalties are so small that no derivative is negative.
SCALARIZATIONS = {
    "geometric_mean": lambda: scalarization.GeometricMean(),
    **{f"stch(mu={mu})": lambda mu=mu: scalarization.STCH(mu) for mu in (0.01, 0.1, 1.0, 10.0)},
    "stch(mu=0.1, weights=[1, 2, 3, 4], ideal=[0.1, 0.2, 0, 0.3])": lambda: scalarization.STCH(0.1, PREFERENCE, IDEAL),
    **{f"cosmos(penalty={p})": lambda p=p: scalarization.COSMOS(p, EQUAL) for p in (0.0, 0.05, 0.2)},
    "cosmos(penalty=0.2, preferences=[1, 2, 3, 4])": lambda: scalarization.COSMOS(0.2, PREFERENCE),
    "pbi(penalty=0.2, ideal=[0.1, 0.2, 0, 0.3])": lambda: scalarization.PBI(0.2, EQUAL, IDEAL),
    "pbi(penalty=0.05, ideal=[0.1, 0.2, 0, 0.3], preferences=[1, 2, 3, 4])":
        lambda: scalarization.PBI(0.05, PREFERENCE, IDEAL),
    # Losses of papers.
    "scale_invariant": lambda: lambda losses: losses.log().sum(),
    **{f"uw_so(temperature={t})": (lambda t=t: lambda losses: torch.softmax(1 / losses.detach() / t, 0) @ losses)
       for t in (0.3, 2, 20.0)},
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARIZATIONS)
def test_the_papers_direction_is_the_gradient_of_the_scalarization_and_the_mean_scale_is_parallel(text):
    theta, losses_of = quadratics()
    rows, losses = rows_and_losses(losses_of, theta)
    expected = gradient_of(SCALARIZATIONS[text](), losses_of, theta)
    paper = text if "uw_so" in text else f"{text[:-1]}, scale='paper')" if "(" in text else f"{text}(scale='paper')"
    torch.testing.assert_close(gradhomog.pipeline(paper).combine(rows, losses), expected, rtol=1e-6, atol=1e-9)
    mean = gradhomog.pipeline(text).combine(rows, losses)
    torch.testing.assert_close(mean / mean.norm(), expected / expected.norm(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "name"), [("uw(lr=0.05, scale='paper')", "UW"), ("imtl_l(lr=0.05, scale='paper')", "IMTLL")]
)
def test_thirty_steps_follow_a_scalarization_whose_weights_adam_moves(text, name):
    theta, losses_of = quadratics()
    moved = getattr(scalarization, name)(4).double()
    optimizer = torch.optim.Adam(moved.parameters(), lr=0.05)
    pipe = gradhomog.pipeline(text)
    for _ in range(30):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = gradient_of(moved, losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-9, atol=1e-12)
        optimizer.zero_grad()
        moved(losses).backward()
        optimizer.step()
        theta = theta - 0.02 * expected
