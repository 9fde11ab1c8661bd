"""Time and memory of a step of LoRA with three losses, relative to the sum of the losses, on a small Llama.

python docs/examples/lora_cost.py [ROUNDS] [WIDTH]
"""

import itertools
import statistics
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

import gradhomog

PIPELINES = ["none", "auto", "upgrad", "reweight(beta=0, solver='fixed_point')", "tracked(method='upgrad')"]
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_step(model, method):
    """A step on six texts of 48 tokens, two of each of three groups."""
    texts, groups = torch.randint(2000, (6, 48)), torch.arange(6) % 3
    beta = 0.0 if method.startswith("tracked") else 0.9
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-5, betas=(beta, 0.999))
    pipe = None if method == "sum" else gradhomog.pipeline(method)

    def step():
        optimizer.zero_grad()
        logits = model(input_ids=texts).logits[:, :-1].transpose(1, 2)
        per_text = cross_entropy(logits, texts[:, 1:], reduction="none").mean(1)
        losses = {f"group {group}": per_text[groups == group].mean() for group in range(3)}
        if pipe is None:
            sum(losses.values()).backward()
        else:
            gradhomog.backward(losses, pipe, parameters=model)
        optimizer.step()

    return step


def peak_bytes(step):
    """The largest number of bytes that are live at the same time, of those that a step allocates on the CPU."""
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


def main(rounds="15", width="256"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": int(width), "intermediate_size": 4 * int(width), "num_hidden_layers": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_attention_heads=4, **sizes))
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=LAYERS))
    model.print_trainable_parameters()
    steps = {method: make_step(model, method) for method in ["sum", *PIPELINES]}
    for method, step in steps.items():
        for _ in range(22 if method == "auto" else 2):  # `auto` measures norms in its first 20 steps
            step()
    times, peaks = {method: [] for method in steps}, {}
    for _ in range(int(rounds)):
        for method, step in steps.items():
            start = time.process_time()
            step()
            times[method].append(time.process_time() - start)
    for method, step in steps.items():
        model.zero_grad()
        peaks[method] = peak_bytes(step)
        ratio = statistics.median(time / plain for time, plain in zip(times[method], times["sum"], strict=True))
        print(f"{method:40} time {ratio:.2f}  memory {peaks[method] / peaks['sum']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
