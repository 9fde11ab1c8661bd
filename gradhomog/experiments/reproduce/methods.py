"""The rows of the paper's tables: learners and pipelines of this library that correspond to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradhomog.experiments.config.suites import PAPER_WEIGHTS, TUNED_STATIC

Problem = Literal["weak", "strong"]

GRADIENT_BASED: Mapping[str, str] = {
    "ANIL": "anil",
    "Reptile": "reptile",
    "MAML": "maml",
    "iMAML": "imaml(inner_steps=10)",
    "MAML++": "mamlpp(multi_step_steps=STEPS*0.15)",
}
"""Learners that the paper combines with RotoGBML; iMAML with ten inner steps, as its paper has for miniImageNet.

`STEPS*x` is a share of the training steps, see `with_steps`; MAML++ has the multi-step loss for 15 of 100 epochs.
"""

OTHERS: Mapping[Problem, Mapping[str, tuple[str, str]]] = {
    "weak": {
        "Linear": ("baseline", "none"),
        "Baseline++": ("baseline_pp", "none"),
        "ProtoNet": ("protonet", "none"),
        "MetaOpt": ("metaoptnet", "none"),
        "MTL": ("mtl(pretrain_steps=STEPS*0.5)", "none"),
        "SKD-GEN1": ("skd(generation0_steps=STEPS*0.5)", "none"),
    },
    "strong": {
        "RelationNet": ("relationnet", "none"),
        "RelationNet-FT": ("relationnet", "fwt"),
        "RelationNet-LRP": ("relationnet_lrp", "none"),
        "RelationNet-ATA": ("relationnet_ata", "none"),
    },
}
"""Comparison methods, as learner and pipeline: rows without RotoGBML.

MTL and SKD train their first phase for half of the steps. The row "Random" of Table 2 is omitted: the paper does not
describe it.
"""


@dataclass(frozen=True)
class Row:
    """One row of a table: a learner with a pipeline.

    Attributes:
        title: name in our table.
        learner: expression of the learner.
        homogenizers: a pipeline, or candidates separated by `|`.
        published: the paper's row; None if it has none.
    """

    title: str
    learner: str
    homogenizers: str
    published: str | None = None


def with_steps(learner: str, steps: int) -> str:
    """The expression of a learner, with shares of the training steps replaced by numbers, at least 1.

    >>> with_steps("mtl(pretrain_steps=STEPS*0.5)", 400)
    'mtl(pretrain_steps=200)'
    """
    return re.sub(r"STEPS\*([\d.]+)", lambda match: str(max(1, round(steps * float(match[1])))), learner)


def rotogbml(problem: Problem, solver: str, beta: float, *, temperature: float | None = None) -> str:
    """The pipeline of RotoGBML; state by slot of the batch for weak, by domain for strong generalization.

    >>> rotogbml("strong", "fixed_point", 1.5)
    'rotogbml(key="domain", reweight={"beta": 1.5, "solver": "fixed_point"})'
    """
    isi = "" if temperature is None else f"isi={_table(temperature=temperature)}, "
    return f'rotogbml({isi}key="{_key(problem)}", reweight={_table(beta=beta, solver=solver)})'


def table_rows(
    problem: Problem, learners: Mapping[str, str], homogenizers: str, *, others: bool, published: bool
) -> list[Row]:
    """Rows of Table 1 or 2: each learner plain, with RotoGBML, and with the baselines of this library.

    The paper has neither tuned static weights nor a multi-task method; both are in every table here.

    Args:
        learners: expressions by title.
        homogenizers: the pipeline of the rows "-RotoGBML".
        published: False if `homogenizers` is not the paper's pipeline.
        others: True to begin with the comparison methods, which are not combined with homogenizers.
    """
    rows = [Row(title, *pair, published=title) for title, pair in OTHERS[problem].items()] if others else []
    for title, learner in learners.items():
        rows += [
            Row(title, learner, "none", title),
            Row(f"{title}-RotoGBML", learner, homogenizers, f"{title}-RotoGBML" if published else None),
            Row(f"{title}, static (tuned)", learner, TUNED_STATIC),
            Row(f"{title}, pcgrad", learner, "pcgrad"),
        ]
    return rows


def ablation_rows(problem: Problem, learner: str, solver: str, beta: float) -> list[Row]:
    """Rows of Table 3: all subsets of the three modules and *hyper*, in its order; then tuned static weights."""
    key = f'key="{_key(problem)}"'
    rotate, reweight = f"rotate({key})", f'reweight(beta={beta:g}, {key}, solver="{solver}")'
    pipelines = {
        "plain": "none",
        "hyper": PAPER_WEIGHTS,
        "reweight": reweight,
        "rotate": rotate,
        "isi": "isi",
        "rotate + reweight": f"{rotate} + {reweight}",
        "isi + reweight": f"isi + {reweight}",
        "isi + rotate": f"isi + {rotate}",
        "isi + rotate + reweight": f"isi + {rotate} + {reweight}",
    }
    rows = [Row(title, learner, pipeline, title) for title, pipeline in pipelines.items()]
    return [*rows, Row("static (tuned)", learner, TUNED_STATIC)]


def beta_rows(problem: Problem, learner: str, solver: str) -> list[Row]:
    """Rows of the figures of β: RotoGBML with each β, and "None", the plain learner."""
    values = (0.0, 0.1, 0.5, 1.0, 1.5, 2.0)
    return [
        Row("None", learner, "none"),
        *(Row(f"β = {beta:g}", learner, rotogbml(problem, solver, beta)) for beta in values),
    ]


def temperature_rows(problem: Problem, learner: str, solver: str, beta: float) -> list[Row]:
    """Rows of the figures of T: RotoGBML with each T, "INF" (dropout), and "None", the plain learner."""
    values = {"0.01": 0.01, "0.1": 0.1, "0.5": 0.5, "1": 1.0, "2": 2.0, "INF": float("inf")}
    return [
        Row("None", learner, "none"),
        *(
            Row(f"T = {name}", learner, rotogbml(problem, solver, beta, temperature=value))
            for name, value in values.items()
        ),
    ]


def _key(problem: Problem) -> str:
    return "domain" if problem == "strong" else "slot"


def _table(**options: float | str) -> str:
    """A table of options as in expressions; JSON has no word for infinity that expressions accept."""
    return json.dumps(options).replace("Infinity", "inf")
