"""The reference of the interatomic potential: energy by loops over pairs and triples, derivatives by differences."""

import runpy
from itertools import combinations, product

import numpy as np
import pytest
import torch

from tests.docs.pages import DOCS

SIGMA, EPSILON, RANGE = 2.0951, 2.1683, 1.8  # Å, eV, and the cutoff in units of the first


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(DOCS / "examples" / "interatomic_potential.py"), run_name="script")


def energy(x, cell):
    """The energy of a periodic cell of silicon by the formula of Stillinger and Weber, in units of eV."""
    total = 0.0
    for atom in x:
        images = np.concatenate([x + np.array(shift) @ cell for shift in product((-1, 0, 1), repeat=3)]) - atom
        r = np.linalg.norm(images, axis=1) / SIGMA
        near = (r > 1e-6) & (r < RANGE)
        images, r = images[near], r[near]
        total += 0.5 * sum(7.049556277 * (0.6022245584 * q**-4 - 1) * np.exp(1 / (q - RANGE)) for q in r)
        for j, k in combinations(range(len(r)), 2):
            cosine = images[j] @ images[k] / (r[j] * r[k] * SIGMA**2)
            total += 21 * (cosine + 1 / 3) ** 2 * np.exp(1.2 / (r[j] - RANGE) + 1.2 / (r[k] - RANGE))
    return EPSILON * total


def properties(script, potential, x, cell):
    inputs = torch.from_numpy(x)[None], torch.from_numpy(cell)[None]
    return [
        value[0].detach().numpy() for value in script["properties"](potential, *inputs, *script["neighbors"](*inputs))
    ]


def a_structure(script):
    (x, cells, *_), _ = script["structures"](1, 0)
    return x[0].double().numpy(), cells[0].double().numpy()


def test_the_perfect_crystal_has_the_cohesive_energy_of_the_paper_and_no_forces(script):
    """In the paper, all bonds are at the minimum −ε of the pair term, two bonds for each atom."""
    sites = np.array([(0, 0, 0), (0, 2, 2), (2, 0, 2), (2, 2, 0)])
    x = np.concatenate([sites, sites + 1]) / 4 * script["LATTICE"]
    found, forces, stress = properties(script, script["stillinger_weber"], x, np.eye(3) * script["LATTICE"])
    assert found == pytest.approx(-2 * EPSILON, rel=1e-5)
    assert np.abs(forces).max() < 1e-12
    assert np.abs(stress).max() < 1e-4  # the lattice constant has four digits


def test_the_reference_is_the_formula_of_pairs_and_triples_with_its_differences(script):
    x, cell = a_structure(script)
    found, forces, stress = properties(script, script["stillinger_weber"], x, cell)
    assert found == pytest.approx(energy(x, cell) / 8, rel=1e-10)
    step = 1e-5
    for entry in [(0, 0), (3, 1), (7, 2)]:
        moved = np.zeros_like(x)
        moved[entry] = step
        slope = (energy(x + moved, cell) - energy(x - moved, cell)) / (2 * step)
        assert forces[entry] == pytest.approx(-slope, rel=1e-6, abs=1e-7)
    for entry in [(0, 0), (1, 1), (0, 2)]:
        strain = np.zeros((3, 3))
        strain[entry] = step
        up, down = (energy(x @ (np.eye(3) + s), cell @ (np.eye(3) + s)) for s in (strain, -strain))
        assert stress[entry] == pytest.approx((up - down) / (2 * step) / np.linalg.det(cell), rel=1e-6, abs=1e-9)


def test_the_network_has_the_symmetries_of_a_potential(script):
    torch.manual_seed(0)
    model = script["Potential"]().double()
    x, cell = a_structure(script)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    one = properties(script, model, x, cell)
    other = properties(script, model, (x + 0.1)[::-1] @ rotation, cell @ rotation)
    assert other[0] == pytest.approx(one[0], rel=1e-10)
    assert other[1] == pytest.approx(one[1][::-1] @ rotation, rel=1e-8, abs=1e-12)
    assert other[2] == pytest.approx(rotation.T @ one[2] @ rotation, rel=1e-8, abs=1e-12)
    assert one[1].sum(0) == pytest.approx(0, abs=1e-12)


def test_all_neighbors_inside_the_cutoff_are_found(script):
    (x, cells, index, shifts), _ = script["structures"](256, 0)
    d = x.gather(1, index.flatten(1)[..., None].expand(-1, -1, 3)).view(shifts.shape) + shifts - x[:, :, None]
    more = torch.tensor([*product(range(-2, 3), repeat=3)], dtype=x.dtype) @ cells
    expected = (x[:, None, :, None] + more[:, None, None] - x[:, :, None, None]).norm(dim=-1).flatten(2)
    inside = (d.norm(dim=-1) < script["CUTOFF"]).sum(-1)
    assert torch.equal(inside, (expected < script["CUTOFF"]).sum(-1) - 1)  # without the atom
    assert 4 <= inside.min() < inside.max() < script["NEIGHBORS"]
