"""The limits of what a split can serve: told by `check`, kept by `sample`."""

from __future__ import annotations

from gradhomog.errors import DataError
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.domains.looking import judge_inputs, judge_targets
from gradhomog.testing.domains.subject import MANY, TRIED, DomainSubject, draw, largest

DRAWN = 40  # ways, shots or queries of the largest tasks that are drawn


@check("domains")
def refuses_too_much(subject: DomainSubject) -> None:
    """What cannot be served is refused by a `DataError` that names domain and split.

    A million ways, in classification; a million shots or queries, unless inputs never run out.
    """
    for split in subject.served:
        for number in ("ways", "shots", "queries"):
            asked = {**TRIED[-1], number: MANY}
            try:
                subject.domain.check(split, **asked)
            except DataError as error:
                missing = [name for name in (subject.domain.name, split) if name not in str(error)]
                if missing:
                    raise CheckFailure(f"`check` refuses {asked} without naming {missing}: {error}") from error
                continue
            if number == "ways" and subject.classifies:
                raise CheckFailure(f"`check` accepts {MANY} ways of the split {split!r}")


@check("domains")
def serves_what_it_accepts(subject: DomainSubject) -> None:
    """The largest numbers of ways, shots and queries that `check` accepts, up to 40, are served by `sample`."""
    for split in subject.served:
        for number in ("ways", "shots", "queries"):
            asked = {**TRIED[-1], number: largest(subject.domain, split, number, DRAWN)}
            try:
                task = draw(subject.domain, split, 0, asked)
            except Exception as error:
                raise CheckFailure(
                    f"`check` accepts {asked} of the split {split!r}; `sample` raises {type(error).__name__}: {error}"
                ) from error
            judge_inputs(task, subject.domain, asked)
            judge_targets(task, subject.domain, asked)
