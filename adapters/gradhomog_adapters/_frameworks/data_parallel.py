"""The ranks of a trainer that distributes batches."""

from __future__ import annotations

from typing import Any

from gradhomog import OptionError, Ranks


def batch_ranks(group: Any, default: Ranks | None) -> Ranks | None:
    """Return the ranks over which a batch is distributed: `group` or, if it is None, those of the trainer.

    Raises:
        OptionError: `group` distributes tasks.
    """
    ranks = default if group is None else group if isinstance(group, Ranks) else Ranks("batch", group)
    if ranks is not None and ranks.over != "batch":
        raise OptionError(
            f"a trainer distributes the examples of a batch: `group` must be Ranks('batch', ...); got {ranks!r}. For "
            "different tasks on each rank, use gradhomog.backward in your own loop."
        )
    return ranks
