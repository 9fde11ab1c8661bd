"""Forget a part of what a small GPT-2 has learned: forget_retain.py [METHOD] [ga | npo | learn] [nll | kl] [WEIGHT]."""

import copy
import sys

import torch
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import GPT2Config, GPT2LMHeadModel

import gradhomog

FORGET, RETAIN, NEW = torch.randint(32, (80, 12), generator=torch.Generator().manual_seed(0)).split([16, 48, 16])
LOSSES = {
    "ga": lambda model, old, x: -nll(model, FORGET).mean(),  # gradient ascent
    "npo": lambda model, old, x: -20 * logsigmoid(1.1 * (nll(model, FORGET) - nll(old, FORGET))).mean(),  # beta = 0.1
    "learn": lambda model, old, x: nll(model, NEW).mean(),
    "nll": lambda model, old, x: nll(model, x).mean(),
    "kl": lambda model, old, x: cross_entropy(logits(model, x), logits(old, x).softmax(1)),  # plus a constant
}


def logits(model, x):
    return model(input_ids=x).logits.transpose(1, 2)


def nll(model, x):  # of each sequence, per token
    return cross_entropy(logits(model, x)[:, :, :-1], x[:, 1:], reduction="none").mean(1)


def pretrained(seed):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=4, n_positions=12, bos_token_id=0, eos_token_id=0)
    start, data = GPT2LMHeadModel(config).eval(), torch.cat([FORGET, RETAIN])  # without dropout
    return train(start, "none", {"all": ("nll", 1.0)}, data, steps=250, rate=3e-3, batch=64)


def train(old, method, tasks, data=RETAIN, steps=60, rate=5e-4, batch=16):
    model, old, pipe = copy.deepcopy(old).requires_grad_(), old.requires_grad_(False), gradhomog.pipeline(method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        x = data[torch.randperm(len(data))[:batch]]  # to retain
        losses = {name: weight * LOSSES[kind](model, old, x) for name, (kind, weight) in tasks.items()}
        optimizer.zero_grad()
        gradhomog.backward(losses, pipe, parameters=model)  # was: sum(losses.values()).backward()
        optimizer.step()
    return model


def main(method="auto", task="ga", retain="nll", weight="1"):
    old = pretrained(seed=0)
    new = train(old, method, {"retain": (retain, 1.0), "task": (task, float(weight))})
    for name, x in {"forget": FORGET, "retain": RETAIN, "new": NEW}.items():
        print(f"{name}: {nll(old, x).mean():.3f} to {nll(new, x).mean():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
