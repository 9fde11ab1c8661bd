"""State by name, in every form in which tasks are passed; beside the check `state_by_name` of the kit."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from gradhomog.registry import installed
from tests.plugins.rows import BUILT_IN

STATEFUL = [
    "cr_mogm(method='mgda')", "auto", "peakscale(warmup=2)", "balancer(average=0.5)", "db_mtl", "dwa(period=2)",
    "excess_mtl", "go4align(lr=0.3, groups=3)", "gradnorm(lr=0.2)", "imtl_l(lr=0.2)", "relobralo(alpha=0.7, rho=0.5)",
    "lra(primary='a')", "lra(primary='b')", "metabalance(primary='a')", "metabalance(primary='b', strategy='reduce')",
    "multiadam(beta1=0.5)", "ntk(every=2, average=0.5)", "reweight(lr=0.2)", "softadapt(order=3, beta=2)",
    "stch(log=true, warmup=0, period=2, mu=0.5)", "tracked", "uw(lr=0.2)",
]  # fmt: skip
# They act in the network, or their formulas contain pairs of tasks, sums over tasks, or exactly one primary task.
OTHERS = {
    "fwt", "gauss_newton", "isi", "rotate", "rotogbml", "rotograd", "gradvac", "ldc_mtl", "sdmgrad", "famo", "moco",
    "pcd",
}  # fmt: skip


def batches(tasks, steps):
    """Rows and losses of several steps; the first task has the longest rows and the largest losses."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randn(tasks, 7, generator=generator, dtype=torch.float64) * (1 + 2 * torch.eye(tasks, 1))
        yield rows, torch.rand(tasks, generator=generator, dtype=torch.float64) + 3 * torch.eye(tasks, 1)[:, 0] + 0.1


def step(pipe, rows, losses, index):
    """The direction of a step of some of the tasks, named a and b, in the order of `index`."""
    domains, traces = ["ab"[task] for task in index], rows[index].square().sum(1)
    return pipe.homogenize(rows[index], losses[index], domains=domains, kernel_traces=traces).direction[""]


@pytest.mark.parametrize("text", STATEFUL)
def test_tasks_of_one_name_update_its_state_once(text):
    """The oracle: every task once, instead of twice with the same rows and losses."""
    twice, once = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for rows, losses in batches(2, steps=4):
        expected = step(once, rows, losses, [0, 1])
        found = step(twice, rows, losses, [0, 1, 1, 0])
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("change", ["left out", "None", "other order"])
@pytest.mark.parametrize("text", ["uw(lr=0.5)", "famo(lr=0.2)", "tracked(method='uw(lr=0.5)', rows='all')"])
def test_losses_in_a_dict_keep_their_state_if_a_key_is_left_out_or_in_another_place(text, change):
    """The oracle: the same losses in a list, with None for the absent one."""
    weight = torch.ones(3, requires_grad=True)
    named, numbered = gradhomog.pipeline(text), gradhomog.pipeline(text)

    def losses():
        return [scale * (weight - index).square().sum() for index, scale in enumerate((1.0, 0.1, 30.0))]

    for _ in range(20):
        gradhomog.backward(dict(zip("abc", losses(), strict=True)), named, parameters=[weight])
        gradhomog.backward(losses(), numbered, parameters=[weight])
    order = "cab" if change == "other order" else "ac"
    absent = {"b": None} if change == "None" else {}
    given = {name: losses()["abc".index(name)] for name in order} | absent
    found = gradhomog.backward(given, named, parameters=[weight])
    listed = [loss if name in order else None for name, loss in zip("abc", losses(), strict=True)]
    expected = gradhomog.backward(listed, numbered, parameters=[weight])
    torch.testing.assert_close(found.direction["0"], expected.direction["0"])


@pytest.mark.parametrize("names", [["a", ""], ["a", None], ["", "b"], [0, 1]])
def test_a_batch_of_tasks_with_and_without_names_raises(names):
    for call in (
        lambda pipe: pipe.combine(torch.eye(2), domains=names),
        lambda pipe: gradhomog.task_features(torch.ones(3, 2), pipe, tasks=2, domains=names),
    ):
        with pytest.raises(OptionError, match="all tasks of a batch must have names, non-empty strings, or none"):
            call(gradhomog.pipeline("rotate"))


@pytest.mark.parametrize("text", ["tracked", "uw", "static + moco"])
@pytest.mark.parametrize(("first", "then"), [(["a", "b"], None), (None, ["a", "b"])])
def test_tasks_have_names_in_every_step_or_in_none(text, first, then):
    saved = gradhomog.pipeline(text)
    saved.combine(torch.eye(2), [1.0, 2.0], domains=first)
    loaded = gradhomog.pipeline(text)
    loaded.load_state_dict(saved.state_dict())
    for pipe in (saved, loaded):
        with pytest.raises(OptionError, match="Pass names in every step"):
            pipe.choose(then or 2)
        with pytest.raises(OptionError, match="Pass names in every step"):
            pipe.combine(torch.eye(2), [1.0, 2.0], domains=then)
        pipe.combine(torch.eye(2), [1.0, 2.0], domains=first)


def test_every_stateful_method_of_the_catalogue_is_among_them():
    stateful = {name for name in BUILT_IN if "stateful" in installed().load("homogenizers", name)[1].traits}
    assert {text.partition("(")[0] for text in STATEFUL} >= stateful - OTHERS
