"""Two tasks of one key: their order has no effect on direction and state, for every stateful method."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog.registry import installed

STATEFUL = [
    "cr_mogm(method='mgda', key='domain')",
    "cr_mogm(method='gradvac(order=\"fixed\", key=\"domain\")', key='domain')",
    "db_mtl(key='domain')",
    "dwa(period=2, key='domain')",
    "excess_mtl(key='domain')",
    "famo(lr=0.2, key='domain')",
    "go4align(lr=0.3, groups=3, key='domain')",
    "gradnorm(lr=0.2, key='domain')",
    "gradvac(beta=0.5, order='fixed', key='domain')",
    "imtl_l(lr=0.2, key='domain')",
    "ldc_mtl(penalty=0.3, lr=0.2, key='domain')",
    "moco(key='domain')",
    "pcd(primary='b', tau=0.3, beta=0.5, key='domain')",
    "relobralo(alpha=0.7, rho=0.5, key='domain')",
    "lra(primary='a', key='domain')",
    "lra(primary='b', key='domain')",
    "metabalance(primary='a', key='domain')",
    "metabalance(primary='b', strategy='reduce', key='domain')",
    "multiadam(beta1=0.5, key='domain')",
    "ntk(every=2, average=0.5, key='domain')",
    "reweight(lr=0.2, key='domain')",
    "sdmgrad(solver='sgd', lr=0.5, iterations=2, key='domain')",
    "softadapt(order=3, beta=2, key='domain')",
    "stch(log=true, warmup=0, period=2, mu=0.5, key='domain')",
    "tracked(order='need', key='domain')",
    "uw(lr=0.2, key='domain')",
]
# They act on features or in the encoder, and keep state by key there.
IN_THE_NETWORK = {"fwt", "isi", "rotate", "rotogbml", "rotograd"}


def swap(values):
    return values[[1, 0, *range(2, len(values))]]


def assert_equal_states(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_equal_states(found[name], expected[name])
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_equal_states(one, other)
    elif isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", STATEFUL)
def test_the_order_of_two_tasks_of_one_key_has_no_effect(text):
    # GradVac changes each row by the others one after another, in an order of slots. Two tasks have only one order.
    domains = ["a", "a"] if "gradvac" in text else ["a", "a", "b", "c"]
    generator, tasks = torch.Generator().manual_seed(0), len(domains)
    pipe, swapped = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for _ in range(5):
        rows = torch.randn(tasks, 7, generator=generator, dtype=torch.float64) * (1 + 2 * torch.eye(tasks, 1))
        losses = torch.rand(tasks, generator=generator, dtype=torch.float64) + 3 * torch.eye(tasks, 1)[:, 0] + 0.1
        traces = rows.square().sum(1)
        direction = pipe.combine(rows, losses, domains=domains, kernel_traces=traces)
        expected = swapped.combine(swap(rows), swap(losses), domains=domains, kernel_traces=swap(traces))
        torch.testing.assert_close(direction, expected, rtol=1e-9, atol=1e-12)
    assert_equal_states(pipe.state_dict(), swapped.state_dict())


def test_every_stateful_method_of_the_catalogue_is_among_them():
    registry = installed()
    names = {
        info.name
        for info in registry.list("homogenizers")
        if info.distribution == "gradhomog" and info.name not in IN_THE_NETWORK
    }
    stateful = {name for name in names if "stateful" in registry.load("homogenizers", name)[1].traits}
    assert {text.partition("(")[0] for text in STATEFUL} >= stateful - {"torchjd"}
