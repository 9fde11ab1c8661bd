"""Calibrated drop probabilities from kernel sums, and two samplers of masks."""

import math

import torch
from torch import Tensor

# Entries of a mask that are drawn at once, with 2 bytes of random bits each. More would not be faster.
BLOCK = 1 << 21


def position_probabilities(log_s: Tensor, temperature: float) -> Tensor:
    """Return the softmax of log S / T over the positions of each sample, `[n, *size]`.

    For T = 0 the positions of the largest S have equal shares. A sample whose log S is NaN has equal shares.
    """
    flat = log_s.flatten(1).nan_to_num(nan=0.0)
    flat = flat - flat.amax(1, keepdim=True)
    if temperature < torch.finfo(flat.dtype).tiny:  # float32 arithmetic treats it as zero
        largest = (flat == 0).to(flat.dtype)
        shares = largest / largest.sum(1, keepdim=True)
    else:
        shares = torch.softmax(flat / temperature, dim=1)
    return shares.view_as(log_s)


def keep_probabilities(shares: Tensor, rate: float) -> Tensor:
    """Return 1 − P = (1 − rate)^(positions · p), `[n, *size]`; for equal shares P is the rate."""
    return torch.exp(shares * (shares[0].numel() * math.log1p(-rate)))


def bernoulli(
    keep: Tensor, value: Tensor, channels: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a mask `[n, channels, *size]` of zeros and of the sample's `value` `[n]`, and its number of zeros.

    Each entry uses 16 random bits, which takes a third of the time of a uniform float. Thresholds are rounded
    stochastically, so that the probabilities are exact on average; those above 1 − 2⁻¹⁶ are reduced to it.
    """
    n, positions = len(keep), keep[0].numel()
    drop = (1 - keep).view(n, 1, positions).mul_(65536)
    drop += torch.rand(drop.shape, generator=generator, device=keep.device)
    least = drop.floor_().clamp_(max=65535).sub_(32768).to(torch.int16)
    mask = torch.empty(n, channels, positions, dtype=dtype, device=keep.device)
    zeros = torch.zeros((), dtype=torch.int64, device=keep.device)
    block = max(1, BLOCK // (channels * positions))
    for start in range(0, n, block):
        part = mask[start : start + block]
        words = torch.empty(-(-part.numel() // 4), dtype=torch.int64, device=keep.device)
        bits = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: part.numel()].view_as(part)
        torch.ge(bits, least[start : start + block], out=part)
        zeros += part.numel() - part.sum(dtype=torch.float32).long()  # a tenth of the time of count_nonzero
        part *= value[start : start + block, None, None]
    return mask.view(n, channels, *keep.shape[1:]), zeros


def keep_probabilities_of_draws(shares: Tensor, draws: float) -> Tensor:
    """Return the probability that none of `draws` draws hits; a fraction f is one more draw with probability f."""
    whole = math.floor(draws)
    return (1 - shares) ** whole * (1 - (draws - whole) * shares)


def multinomial(
    shares: Tensor, draws: int, value: Tensor, channels: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """As `bernoulli`, with zeros at the results of `draws` draws with replacement, for each channel of a sample."""
    n = len(shares)
    mask = value.to(dtype)[:, None, None].repeat(1, channels, shares[0].numel())
    if draws:
        drawn = torch.multinomial(shares.flatten(1), channels * draws, replacement=True, generator=generator)
        mask.scatter_(2, drawn.view(n, channels, draws), 0)
    return mask.view(n, channels, *shares.shape[1:]), mask.numel() - mask.count_nonzero()
