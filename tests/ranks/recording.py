"""Counts of the messages and bytes that a rank sends, at the functions of PyTorch that gradhomog calls."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.distributed as dist

from gradhomog.ranks import communicator


@dataclass
class Recording:
    """The bytes that this rank sent by operation, for the algorithms that send the fewest (rings), and the calls."""

    sent: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


@contextmanager
def recorded() -> Iterator[Recording]:
    """Count within the context. The reduce-scatter of gloo is an all-to-all of equal parts."""
    found, others = Recording(), dist.get_world_size() - 1

    def counting(operation: str, function: Any, sent: Callable[..., int]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            name = "reduce_scatter" if operation == "all_to_all" and options.get("async_op") else operation
            found.calls[name] += 1
            found.sent[name] += sent(*arguments)
            return function(*arguments, **options)

        return call

    share = others / (others + 1)
    functions = [
        (dist, "all_reduce", "all_reduce", lambda total: int(2 * total.nbytes * share)),
        (communicator, "_all_gather", "all_gather", lambda _, value: value.nbytes * others),
        (dist, "all_to_all_single", "all_to_all", lambda _, value, *sizes: int(value.nbytes * share)),
        (dist, "all_gather_object", "names", lambda *_: 0),
    ]
    with ExitStack() as stack:
        for owner, name, operation, sent in functions:
            patched = counting(operation, getattr(owner, name), sent)
            stack.enter_context(mock.patch.object(owner, name, patched))
        yield found
