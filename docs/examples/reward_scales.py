"""Two rewards of different scale or in conflict: sums, tuned weights, normalized rewards and homogenizers in GRPO.

python docs/examples/reward_scales.py                                          # three tables
python docs/examples/reward_scales.py length --seeds 2 --methods upgrad auto   # without the tuned weight
"""

import argparse
import contextlib
import io
import sys
import tempfile
import warnings

import numpy as np
import torch
from grpo_two_rewards import LENGTHS, PROMPTS, QUIET, WORDS, covers, model, short, tokenizer
from trl import GRPOConfig, GRPOTrainer

import gradhomog
from gradhomog_adapters.trl import HomogenizedGRPOTrainer

SEEDS, TUNING_SEEDS = range(5), range(10, 12)
WEIGHTS = [2 ** (power / 4) for power in range(-4, 21)]
"""Weights of the second reward."""
RAW, NORMALIZED = {"scale_rewards": "none"}, {"multi_objective_aggregation": "normalize_then_sum"}


def share(name, words, unit=1):
    """Return a reward: `unit` times the share of these words among eight."""

    def reward(completions, **_):
        return [unit * sum(word in words for word in text.split()) / 8 for text in completions]

    reward.__name__ = name
    return reward


CASES = {
    "compatible": ([share("low", WORDS[:7], 20), share("even", WORDS[::2])], [20, 1]),
    "exclusive": ([share("first", WORDS[:7], 20), share("last", WORDS[20:])], [20, 1]),
    "length": ([short, covers], [1, 1]),
}
"""Two rewards, and the largest value of each."""
HOMOGENIZERS = ["none", "upgrad", "auto", "imtl_g", "reweight(beta=0, solver='fixed_point')"]


def train(case, seed, steps, pipe=None, **options):
    """Return the mean of each reward, from 0 to 1, over the completions of a third of the prompts."""
    rewards, largest = CASES[case]
    kind, given = GRPOTrainer, {}
    if pipe is not None:
        kind, given = HomogenizedGRPOTrainer, {"homogenizers": gradhomog.pipeline(pipe)}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = GRPOConfig(folder, max_steps=steps, learning_rate=3e-3, seed=seed, **LENGTHS, **QUIET, **options)
        trainer = kind(model(seed), rewards, args, train_dataset=PROMPTS, processing_class=tokenizer(), **given)
        trainer.train()
    torch.manual_seed(9)
    trainer.model.eval()
    words = tokenizer()
    prompts = words(PROMPTS["prompt"][::3], return_tensors="pt").input_ids
    mask = torch.ones_like(prompts)
    texts = trainer.model.generate(prompts, attention_mask=mask, do_sample=True, max_new_tokens=8, pad_token_id=0)
    completions = words.batch_decode(texts[:, 2:], skip_special_tokens=True)
    return [np.mean(reward(completions)) / best for reward, best in zip(rewards, largest, strict=True)]


def settings(case, steps, methods):
    """Yield a label, a pipeline or None, and the options of each row of the table."""
    second = CASES[case][0][1].__name__
    yield "TRL: sum", None, RAW
    if methods is not None:
        for pipe in methods:
            yield f"`{pipe}`", pipe, RAW
        return
    yield "TRL: sum, `scale_rewards` group", None, {}
    scores = {
        weight: np.mean([min(train(case, s, steps, **RAW, reward_weights=[1.0, weight])) for s in TUNING_SEEDS])
        for weight in WEIGHTS
    }
    for weight, score in scores.items():
        print(f"weight {weight:.3g}: the worse reward is {score:.3f} on the tuning seeds", file=sys.stderr)
    weight = max(scores, key=scores.get)
    yield f"TRL: sum, tuned weight {weight:.3g}", None, {**RAW, "reward_weights": [1.0, weight]}
    yield "TRL: normalized", None, NORMALIZED
    yield f"TRL: `{second}` alone", None, {**RAW, "reward_weights": [0.0, 1.0]}
    protecting = [f"{name}(primary='{second}')" for name in ("sago", "pcd")]
    for pipe in [*HOMOGENIZERS, *protecting]:
        yield f"`{pipe}`", pipe, RAW
    for pipe in ["upgrad", protecting[0]]:
        yield f"normalized, `{pipe}`", pipe, NORMALIZED


def interval(values):
    half = {2: 12.706, 5: 2.776}[len(values)] * values.std(ddof=1) / len(values) ** 0.5  # Student's t
    return f"{values.mean():.3f} ± {half:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES])
    parser.add_argument("--methods", nargs="+", metavar="PIPELINE", help="rows after TRL's sum, instead of all")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5, choices=(2, 5))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for case in options.cases:
        names = [reward.__name__ for reward in CASES[case][0]]
        print(f"\n| {case} | {' | '.join(names)} | the worse | the worse − sum |\n|---|---|---|---|---|", flush=True)
        baseline = None
        for label, pipe, arguments in settings(case, options.steps, options.methods):
            seeds = SEEDS[: options.seeds]
            found = np.array([train(case, seed, options.steps, pipe, **arguments) for seed in seeds])
            columns = [*found.T, found.min(1)]
            baseline = columns[-1] if baseline is None else baseline
            cells = [interval(column) for column in (*columns, columns[-1] - baseline)]
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
