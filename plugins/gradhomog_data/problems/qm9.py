"""The benchmark QM9: eleven properties of molecules, predicted by the message-passing network of its papers."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from gradhomog import DataError, Evaluation, ProblemRun
from gradhomog_data._packages import require_package
from gradhomog_data._seeding import generator
from gradhomog_data.problems._benchmark import Batch, Benchmark, SharedNetwork, SplitName
from gradhomog_data.problems._scores import Collected, absolute_error

PROPERTIES = {
    "mu": (0, 1), "alpha": (1, 1), "homo": (2, 1000), "lumo": (3, 1000), "r2": (5, 1), "zpve": (6, 1000),
    "U0": (12, 1000), "U": (13, 1000), "H": (14, 1000), "G": (15, 1000), "cv": (11, 1),
}  # fmt: skip
"""The column of each task in `y` of PyTorch Geometric, and the factor of its error: energies are in eV there, and their
errors in meV. U0, U, H and G are atomization energies. Column 4, the gap lumo − homo, is omitted."""

ATOM_FEATURES, BONDS = 11, 4

COLUMNS = (ATOM_FEATURES, BONDS, 19)
"""Of x, edge_attr and y."""


def read_molecules(data: str) -> Any:
    """Return the molecules as a dataset of PyTorch Geometric, from the file in the user's folder only.

    Raises:
        DataError: PyTorch Geometric is not installed; the file is missing or damaged.
    """
    require_package(f"{data}: molecules are read with", "torch_geometric", "torch-geometric", "qm9")
    from torch_geometric.datasets import QM9

    class Local(QM9):  # type: ignore[misc, unused-ignore]
        has_download = False

    root = Path(data).expanduser()
    if not (path := root / "processed" / "data_v3.pt").is_file():
        raise DataError(
            f"{path} is missing. Nothing is downloaded here; where you may download, `torch_geometric.datasets.QM9` "
            "with this folder writes it, from the raw files if rdkit is installed."
        )
    try:
        found = Local(str(root))
        columns = tuple(found._data[name].shape[1] for name in ("x", "edge_attr", "y"))
    except Exception as cause:  # OSError, RuntimeError, UnpicklingError, KeyError, ...
        raise DataError(f"{path}: cannot be read as QM9 ({type(cause).__name__}). Create it again.") from cause
    if columns != COLUMNS or not bool(found._data.y.isfinite().all()):
        raise DataError(
            f"{path}: x, edge_attr and y must have {COLUMNS} columns, and y finite numbers; found {columns} columns. "
            "Create it again without transforms."
        )
    return found


def complete_graph(molecule: Any) -> Any:
    """Return a molecule with an edge between each two atoms, with the kind of the bond and the distance, `[edges, 5]`.

    The kind is one-hot, and zero where there is no bond. As the transforms Complete and Distance(norm=False) of the
    example examples/qm9_nn_conv.py of PyTorch Geometric.
    """
    from torch_geometric.data import Data

    atoms = molecule.num_nodes
    bonds = molecule.edge_attr.new_zeros(atoms, atoms, BONDS)
    bonds[molecule.edge_index[0], molecule.edge_index[1]] = molecule.edge_attr
    edges = (~torch.eye(atoms, dtype=torch.bool)).nonzero().T
    distance = (molecule.pos[edges[1]] - molecule.pos[edges[0]]).norm(dim=1, keepdim=True)
    return Data(x=molecule.x, edge_index=edges, edge_attr=torch.cat([bonds[edges[0], edges[1]], distance], 1))


class MessagePassing(nn.Module):
    """Three steps of message passing, and the readout Set2Set; features `[molecules, width]` of a batch of graphs.

    h⁰ = ReLU(V x);  m_i = ReLU(W h_i + b + mean_j A(e_ij) h_j);  h_i ← GRU(m_i, h_i), three times with the same
    parameters;  z = ReLU(U Set2Set(h)).  A is a network with 128 hidden units that returns matrices
    `[width, width]`.

    Source: Gilmer et al. 2017, arXiv:1704.01212, sections 3 and 5, in the form of examples/qm9_nn_conv.py of PyTorch
    Geometric, which Nash-MTL and FAMO use with width 64.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import NNConv, Set2Set

        self.lin0 = nn.Linear(ATOM_FEATURES, width)
        matrices = nn.Sequential(nn.Linear(BONDS + 1, 128), nn.ReLU(), nn.Linear(128, width * width))
        self.conv = NNConv(width, width, matrices, aggr="mean")
        self.gru = nn.GRU(width, width)
        self.set2set = Set2Set(width, processing_steps=3)
        self.lin1 = nn.Linear(2 * width, width)

    def forward(self, graphs: Any) -> Tensor:
        hidden = relu(self.lin0(graphs.x))
        for _ in range(3):
            messages = relu(self.conv(hidden, graphs.edge_index, graphs.edge_attr))
            hidden = self.gru(messages[None], hidden[None])[0][0]
        return relu(self.lin1(self.set2set(hidden, graphs.batch)))


class Qm9(Benchmark):
    """Eleven properties of 130,831 molecules, standardized by the training molecules; a linear head for each.

    The loss of a property is the mean squared error of its standardized values. The score is the mean absolute error:
    in D (mu), a₀³ (alpha), meV (homo, lumo, zpve, U0, U, H, G), a₀² (r2) and cal/(mol K) (cv). The state with the
    smallest validation error is tested: the mean over the properties of errors in standard deviations.

    Source: Ramakrishnan et al. 2014, doi 10.1038/sdata.2014.22; protocol: Nash-MTL (Navon et al. 2022,
    arXiv:2202.01017) and FAMO (Liu et al. 2023, arXiv:2306.03792), experiments/quantum_chemistry with --scale-y=True:
    Adam with rate 1e-3, batches of 120, 300 epochs. It differs from their code: 1. the rate does not decrease when Δm
    stagnates; 2. they choose the epoch by Δm on validation molecules, with their own single-task errors; 3. the split
    does not depend on the seed of the run; 4. the last batch of an epoch is omitted.

    Args:
        data: the root folder of `torch_geometric.datasets.QM9`.
        batch: molecules per step.
        held_out: molecules for validation, and for test.
        seed: of the split.
    """

    metric = "error"

    def __init__(
        self, run: ProblemRun, *, data: str, batch: Annotated[int, Ge(1)] = 120,
        held_out: Annotated[int, Ge(1)] = 10_000, seed: Annotated[int, Ge(0)] = 0,
    ) -> None:  # fmt: skip
        self.molecules = read_molecules(data)
        if (count := len(self.molecules)) < 2 * held_out + 2:
            raise DataError(
                f"{data}: found {count:,} molecules; QM9 has 130,831. `problem.held_out` {held_out:,} are for "
                "validation, as many for test, and at least two must remain."
            )
        order = torch.from_numpy(generator(seed).permutation(count))
        parts = torch.split(order, [held_out, held_out, count - 2 * held_out])
        self.parts = dict(zip(("test", "validation", "train"), parts, strict=True))
        values = self.molecules._data.y[:, [column for column, _ in PROPERTIES.values()]]
        train = values[self.parts["train"]]
        self.targets = (values - train.mean(0)) / train.std(0)
        factors = torch.tensor([factor for _, factor in PROPERTIES.values()])
        self.units = (factors * train.std(0)).tolist()
        self.fingerprint = hashlib.sha256(values.numpy().tobytes() + train.numpy().tobytes()).hexdigest()[:12]
        super().__init__(
            run, tuple(PROPERTIES),
            lambda: SharedNetwork(MessagePassing(run.width), {task: nn.Linear(run.width, 1) for task in PROPERTIES}),
            len(train), batch, f"Molecules: {len(train):,} for training, {held_out:,} for validation and for test.",
        )  # fmt: skip

    def batch(self, index: int) -> Batch:
        train = self.parts["train"]
        return self._read(train[self.indices(index, len(train))])

    def chunks(self, split: SplitName) -> Iterator[Batch]:
        return map(self._read, torch.split(self.parts[split], self.batch_size))

    def _read(self, chosen: Tensor) -> Batch:
        from torch_geometric.data import Batch as GraphBatch

        graphs = GraphBatch.from_data_list([complete_graph(self.molecules[number]) for number in chosen.tolist()])
        graphs, targets = graphs.to(self.device), self.targets[chosen].to(self.device)
        return {task: (graphs, target) for task, target in zip(self.tasks, targets.unbind(1), strict=True)}

    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        return mse_loss(outputs[:, 0], targets)

    def meters(self) -> dict[str, Collected]:
        return {task: Collected(task, absolute_error) for task in self.tasks}

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        found = super().test(states)  # in standard deviations, as in validation
        found.scores = [unit * score for unit, score in zip(self.units, found.scores, strict=True)]
        return found
