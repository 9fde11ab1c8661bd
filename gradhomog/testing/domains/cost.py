"""What it costs: the time of a task, told."""

from __future__ import annotations

import statistics
import time

from gradhomog.testing.checking import check
from gradhomog.testing.domains.subject import DomainSubject, draw

DRAWS = 40


@check("domains")
def cost(subject: DomainSubject) -> str:
    """What making the domain and drawing a task take. Reported."""
    _ = subject.domain
    start = time.perf_counter()
    domain = subject.another()
    making = time.perf_counter() - start
    split, numbers = next(iter(subject.served.items()))
    seconds = []
    for seed in range(DRAWS):
        start = time.perf_counter()
        draw(domain, split, seed, numbers)
        seconds.append(time.perf_counter() - start)
    inputs = f"{numbers['shots']} + {numbers['queries']} inputs" + (" of each way" if subject.classifies else "")
    ways = f"{numbers['ways']} ways, " if subject.classifies else ""
    return f"a task takes {1e3 * statistics.median(seconds):.2g} ms ({ways}{inputs}); the domain took {making:.2g} s"
