"""Synthetic records of comparisons: small, seeded, in the format that training writes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]

METHODS = ("plain", "static (tuned)", "pcgrad", "gradnorm(alpha=1.5)", "mgda", "isi + rotate + reweight(beta=1.5)")
TRAIN = ("glyphs:latin", "glyphs:greek", "glyphs:arrows", "glyphs:armenian")
TEST = ("glyphs:georgian", "glyphs:dingbats")


def result(
    label: str,
    seed: int,
    scores: Sequence[float | None],
    *,
    domains: Sequence[str] = (),
    learner: str = "maml",
    **more: Any,
) -> Record:
    """Return the result of a run."""
    return {
        "event": "result", "run": f"{learner}-{label}-s{seed}", "label": label, "learner": learner,
        "homogenizers": "none" if label == "plain" else label, "seed": seed, "role": "compare", "metric": "accuracy",
        "scores": list(scores), "losses": [1.0] * len(scores),
        "domains": list(domains or ["glyphs:georgian"] * len(scores)), "validation": 0.4, "best_step": 150,
        "steps": 200, "seconds": 20.0, "step_seconds": 0.1, "files": {}, **more,
    }  # fmt: skip


def start(methods: Sequence[str] = METHODS, seeds: int = 3, learners: Sequence[str] = ("maml",)) -> Record:
    """Return the first record of a comparison."""
    config = {
        "learner": list(learners), "homogenizers": ["none" if method == "plain" else method for method in methods],
        "seeds": seeds, "domains": {"train": list(TRAIN), "test": list(TEST)},
    }  # fmt: skip
    return {
        "event": "start", "time": "2025-01-01T00:00:00+00:00", "config": config, "seeds": seeds,
        "runs": len(methods) * seeds * len(learners), "jobs": 1,
        "versions": {"python": "3.12.1", "gradhomog": "0.1.0", "torch": "2.13.0"},
        "machine": {"system": "Linux", "cores": 2},
    }  # fmt: skip


def with_start(records: Sequence[Record]) -> list[Record]:
    """Return results with the first record of their comparison."""
    methods, learners, seeds = (dict.fromkeys(r[key] for r in records) for key in ("label", "learner", "seed"))
    return [start(list(methods), len(seeds), list(learners)), *records]


def modules(label: str) -> list[str]:
    """Return the names of a method's homogenizers."""
    return [] if label == "plain" else [text.split("(")[0].strip() for text in label.split(" + ")]


def stage(name: str, rows: np.ndarray) -> Record:
    """Return the record of a stage with these rows, `[tasks, params]`."""
    norms = np.linalg.norm(rows, axis=1)
    cosines = np.divide(
        rows @ rows.T, np.outer(norms, norms), where=np.outer(norms, norms) > 0, out=np.full((4, 4), np.nan)
    )
    return {"name": name, "norms": norms.tolist(), "cosines": cosines.tolist()}


def probe(number: int, label: str) -> Record:
    """Return a probe of four tasks: the encoder's rows before and after each homogenizer."""
    random = np.random.default_rng(number)
    rows = [random.normal(size=(4, 6)) + 0.2 * index for index in range(len(modules(label)) + 1)]
    names = ["plain", *modules(label)]
    return {"event": "probe", "step": number, "stages": list(map(stage, names, rows))}


def step(number: int, random: np.random.Generator, train: Sequence[str], label: str) -> Record:
    """Return a training step of four tasks."""
    tasks = 4
    rows = random.normal(size=(tasks, 6)) + 0.4
    norms = np.linalg.norm(rows, axis=1)
    factors = np.ones(tasks) if label == "plain" else random.dirichlet(np.full(tasks, 9.0)) * tasks
    return {
        "event": "step", "step": number, "losses": random.uniform(1, 2, tasks).tolist(),
        "accuracies": random.uniform(0, 1, tasks).tolist(), "norms": norms.tolist(),
        "cosines": (rows @ rows.T / np.outer(norms, norms)).tolist(), "weights": factors.tolist(),
        "tasks": list(range(tasks)), "names": [str(name) for name in random.choice(train, tasks)],
        "stages": [stage(name, factors[:, None] * rows) for name in modules(label) if name not in ("isi", "rotate")],
        "measured": {},
    }  # fmt: skip


def comparison(
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    learners: Sequence[str] = ("maml",),
    train: Sequence[str] = TRAIN,
    test: Sequence[str] = TEST,
    steps: int = 12,
    tasks: int = 20,
) -> list[Record]:
    """Return all records: start, steps, validations, results, and the candidates of tuned methods."""
    random = np.random.default_rng(0)
    records = [start(methods, seeds, learners)]
    task_means = random.uniform(0.3, 0.6, tasks)
    for learner in learners:
        for label in methods:
            for seed in range(seeds):
                scores = np.clip(task_means + random.normal(0, 0.03) + random.normal(0, 0.05, tasks), 0, 1).tolist()
                record = result(
                    label, seed, scores, domains=[test[i % len(test)] for i in range(tasks)], learner=learner
                )
                if label.endswith("(tuned)"):
                    options = ["static(seed=1)", "static(seed=2)"]
                    record |= {"homogenizers": options[0], "tuned_from": options, "chosen": options[0]}
                    if seed == 0:
                        for option in options:
                            changes = {"role": "candidate", "homogenizers": option, "run": f"{learner}-{option}-s0"}
                            candidate = {**record, **changes}
                            del candidate["tuned_from"], candidate["chosen"]
                            records.append(candidate)
                events = [step(number, random, train, label) for number in [1, *range(5, 5 * steps, 5)]]
                for number in (20, 40, 60):
                    score = float(0.3 + number / 500 + random.normal(0, 0.01))
                    events.append({"event": "validation", "step": number, "score": score, "half_width": 0.02})
                    if "isi" in modules(label):
                        events.append(probe(number, label))
                identity = {key: record[key] for key in ("run", "learner", "label", "seed", "role")}
                records += [*({**event, **identity} for event in events), record]
    return records
