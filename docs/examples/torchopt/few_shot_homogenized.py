"""TorchOpt's few-shot MAML in the style of the Omniglot example: `MetaSGD` in the inner, Adam in the outer loop."""

import numpy as np
import torch
import torch.nn.functional as F
import torchopt
from torch import nn

import gradhomog
from gradhomog_adapters.torchopt import meta_step  # changed

N_WAY, K_SPT, K_QRY, N_INNER_ITER = 5, 1, 5, 3


def network(width=16):
    layers = []
    for channels in (1, width, width):
        layers += [nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width, momentum=1.0), nn.ReLU(), nn.MaxPool2d(2, 2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, N_WAY))


def train(net, batches):
    net.train()
    inner_opt = torchopt.MetaSGD(net, lr=1e-1)
    meta_opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    pipe = gradhomog.pipeline("pcgrad")  # changed

    for batch in batches:
        meta_opt.zero_grad()
        net_state_dict = torchopt.extract_state_dict(net, by="reference", detach_buffers=True)
        optim_state_dict = torchopt.extract_state_dict(inner_opt, by="reference")

        with meta_step(net, pipe, inner=inner_opt) as step:  # changed
            for task in batch:
                with step.task(domain=task.domain):  # changed
                    for _ in range(N_INNER_ITER):
                        spt_loss = F.cross_entropy(net(task.support_x), task.support_y)
                        inner_opt.step(spt_loss)

                    qry_loss = F.cross_entropy(net(task.query_x), task.query_y)
                    step.add(qry_loss)  # changed

                    torchopt.recover_state_dict(net, net_state_dict)
                    torchopt.recover_state_dict(inner_opt, optim_state_dict)

        meta_opt.step()


def test(net, tasks):
    net.train()
    inner_opt = torchopt.MetaSGD(net, lr=1e-1)
    net_state_dict = torchopt.extract_state_dict(net, by="reference", detach_buffers=True)
    optim_state_dict = torchopt.extract_state_dict(inner_opt, by="reference")

    qry_losses = []
    for task in tasks:
        for _ in range(N_INNER_ITER):
            spt_loss = F.cross_entropy(net(task.support_x), task.support_y)
            inner_opt.step(spt_loss)
        qry_losses.append(F.cross_entropy(net(task.query_x), task.query_y).item())

        torchopt.recover_state_dict(net, net_state_dict)
        torchopt.recover_state_dict(inner_opt, optim_state_dict)
    return np.mean(qry_losses)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)  # small networks: more threads are slower
    rng = np.random.default_rng(1)
    scripts = [gradhomog.domain(f"glyphs:{name}") for name in ("latin", "greek", "cyrillic", "arrows")]
    shape = {"ways": N_WAY, "shots": K_SPT, "queries": K_QRY}

    net = network()
    train(net, ([script.sample("train", rng, **shape) for script in scripts] for _ in range(25)))
    unseen = gradhomog.domain("glyphs:georgian")
    print(f"Test Loss: {test(net, [unseen.sample('all', rng, **shape) for _ in range(20)]):.3f}")


if __name__ == "__main__":
    main()
