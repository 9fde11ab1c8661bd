"""`Diagnosis`: collect the rows of independent batches, and estimate signal, noise and conflict of the tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from gradhomog.autograd.derivatives import DirectDerivatives
from gradhomog.autograd.inputs import Losses, Parameters
from gradhomog.autograd.loss_graph import LossGraph, find_graph
from gradhomog.autograd.row_source import LossRows
from gradhomog.diagnosis import row_statistics
from gradhomog.diagnosis.estimates import MIN_BATCHES
from gradhomog.diagnosis.labelled_gramian import COLUMNS, RowStore
from gradhomog.diagnosis.recommend import recommend
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.diagnosis.summed_loss import rows_are_accumulated, rows_are_dependent, rows_are_parallel, summed_labels
from gradhomog.errors import OptionError
from gradhomog.registry.options import ValidatedConstructor
from gradhomog.rows import Jacobian, as_jacobian


def loss_rows(losses: Losses, parameters: Parameters | None = None) -> tuple[dict[str, Tensor], LossGraph]:
    """Return the rows `[tasks, *shape]` of the present tasks by parameter, and these tasks with the parameters.

    The graph of the losses is kept, so that a training step can follow.

    Args:
        losses, parameters: as in `gradhomog.backward`.

    Raises:
        OptionError: as in `gradhomog.backward`.
    """
    found = find_graph(losses, parameters, None)
    tasks = len(found.tasks.losses)
    graph = replace(found, unshared_leaves=[()] * tasks)
    rows = LossRows(DirectDerivatives(graph, [1.0] * tasks, retain_graph=True)).stored()
    return dict(rows.by_parameter()), found


class Diagnosis(ValidatedConstructor):
    """Separates conflict from noise: estimates about expected gradients of tasks, from rows of independent batches.

    The cosine of two noisy rows is close to 0, and negative in almost half of the batches, although the gradients that
    they estimate may agree. Products of rows of *different* batches have no such noise on average:

        ⟨E g_k, E g_l⟩ = E⟨g_k^b, g_l^b'⟩,  b ≠ b'

    From the mean over all pairs of batches follow norms, cosines and norm ratios of expected gradients, the gradient
    noise scale tr Cov(g) / ‖E g‖², and the share of conflicting pairs of rows that noise explains. Add batches at fixed
    parameters: several batches before a training step, or between two steps.

    Args:
        names: the tasks in the order of the result; by default in the order of appearance.
        batch_size: examples per task and batch, for noise scales in examples.
        columns: rows with more parameters are stored as a random sketch of this many numbers, >= 1. A cosine then has
            an additional error with a standard deviation of at most √(2 / columns), 0.003 by default, which intervals
            do not include, and rates of conflict are biased towards 1/2: see `RowStore`.
        seed: seed of the sketch.

    Memory: 4 bytes · batches · tasks · min(params, columns) on the CPU; at most 1 MiB per row by default. Cost of a
    result: O((batches · tasks)² · min(params, columns)), a second for 200 rows.

    Source: U-statistics, Hoeffding 1948; intervals by the jackknife, Efron & Stein 1981; noise scale, McCandlish et al.
    2018, arXiv 1812.06162, appendix A.1; sketch, Charikar et al. 2002.

    >>> import torch, gradhomog
    >>> generator = torch.Generator().manual_seed(0)
    >>> means = torch.zeros(2, 1000)
    >>> means[0, 0], means[1, :2] = 10.0, torch.tensor([-8.0, 6.0])  # cosine −0.8; the noise has norm 32
    >>> diagnosis = gradhomog.Diagnosis(["depth", "normals"])
    >>> for batch in range(64):
    ...     diagnosis.add(means + torch.randn(2, 1000, generator=generator))
    >>> result = diagnosis.result()
    >>> print(f"{result.expected.cosines.value[0, 1]:.2f} ± {result.expected.cosines.half_width[0, 1]:.2f}")
    -0.80 ± 0.03
    >>> [sentence.code for sentence in result.recommendation]
    ['conflict', 'average_more']
    """

    def __init__(
        self, names: Sequence[str] | None = None, *, batch_size: Annotated[int, Ge(1)] | None = None,
        columns: Annotated[int, Ge(1)] = COLUMNS, seed: int = 0,
    ) -> None:  # fmt: skip
        if names is not None and (not names or len(set(names)) < len(names)):
            raise OptionError(f"`names` must contain the different names of the tasks; got {names!r}.")
        self._names, self._batch_size = None if names is None else tuple(names), batch_size
        self._store = RowStore(self._names, columns, seed)
        self._discovered = list[Tensor]()

    def add(self, rows: Tensor | Mapping[str, Tensor] | Jacobian, names: Sequence[str] | None = None) -> None:
        """Add the rows of one batch; they are copied.

        Args:
            rows: `[tasks, params]`, or by parameter name `[tasks, *shape]`.
            names: the name of each row: its task, or the domain from which its task is sampled. Rows with equal names
                have equal expectations. By default those of the constructor, or else the positions "0", "1", ….

        Raises:
            OptionError: the number of names differs from the number of rows. DataError: a name is not one of the
                constructor's, a row contains NaN or infinity, or the parameters differ from those of earlier rows.
        """
        jacobian = as_jacobian(rows)
        self._store.add(jacobian.materialize(), self._row_names(tuple(names or ()), jacobian.tasks))

    def add_losses(
        self, losses: Losses, parameters: Parameters | None = None, names: Sequence[str] | None = None
    ) -> None:
        """Differentiate the losses of one batch and add the rows; `.grad` and the graph of the losses do not change.

        Args:
            losses, parameters: as in `gradhomog.backward`: one scalar per task, None for an absent task. Parameters can
                only be omitted if the losses of all batches share the same ones.
            names: one name per task, as in `add`; by default the keys of a dict.

        Raises:
            OptionError, DataError: as in `gradhomog.backward` and `add`; `parameters` is omitted, and the losses share
                other parameters than those of the first batch.

        Cost: one backward pass per task.
        """
        rows, found = loss_rows(losses, parameters)
        if parameters is None:
            shared = list(found.shared.values())
            first = self._discovered = self._discovered or shared
            if len(first) != len(shared) or any(a is not b for a, b in zip(first, shared, strict=True)):
                raise OptionError(
                    f"the losses of batch {self._store.batches} share other parameters, or in another order, than "
                    "those of the first batch, as if a task is absent. Pass `parameters`."
                )
        tasks = found.tasks
        present = tasks.select_present(names or tasks.names or self._row_names((), tasks.tasks), "names")
        self._store.add(rows, present)

    def result(self) -> DiagnosisResult:
        """Return the estimates and the recommendation for all batches so far; more can be added.

        Raises:
            OptionError: there are fewer than three batches, or no task has rows in three of them.
        """
        store = self._store
        if store.batches < MIN_BATCHES:
            raise OptionError(f"a diagnosis requires at least {MIN_BATCHES} batches; got {store.batches}. Add more.")
        every = store.result()
        batches = (every.row_counts > 0).sum(0).tolist()
        frequent = [label for label, count in enumerate(batches) if count >= MIN_BATCHES]
        if not frequent:
            raise OptionError(
                f"a diagnosis requires a task with rows in {MIN_BATCHES} batches; got {max(batches)}. Add more."
            )
        gramian = every.select(frequent)
        dimension = min(store.params, store.columns)  # all rows of one number are parallel
        found = DiagnosisResult(
            tasks=gramian.names,
            left_out={every.names[label]: count for label, count in enumerate(batches) if label not in frequent},
            batches=gramian.count, params=store.params, columns=store.columns,
            batch_size=self._batch_size,
            single=row_statistics.single_rows(gramian), row_norms=row_statistics.row_norms(gramian),
            expected=row_statistics.expected_gradients(gramian), norm_ratios=row_statistics.norm_ratios(gramian),
            step=row_statistics.step_alignment(gramian), noise=row_statistics.noise(gramian),
            accumulated=rows_are_accumulated(gramian),
            parallel=dimension > 1 and rows_are_parallel(gramian),
            summed=tuple(summed_labels(gramian)) if dimension > 1 else (),
            dependent=rows_are_dependent(gramian, dimension),
        )  # fmt: skip
        return replace(found, recommendation=recommend(found))

    def _row_names(self, names: tuple[str, ...], tasks: int) -> tuple[str, ...]:
        if names and len(names) != tasks:
            raise OptionError(f"`names` must contain one name for each of the {tasks} rows; got {list(names)}.")
        if names:
            return names
        if self._names is None:
            return tuple(map(str, range(tasks)))
        if len(self._names) != tasks:
            raise OptionError(
                f"a batch must have one row for each of the {len(self._names)} `names`; got {tasks}. Pass the names of "
                "its rows if a task is absent or occurs twice."
            )
        return self._names
