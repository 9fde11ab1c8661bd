"""Two losses of unknown scale: classify digits and reconstruct their pixels, which have values of 0 to 1, 16 or 255.

The unit of pixels is rarely chosen with loss weights in mind, yet it multiplies the second loss by up to 65,025.
Compares the sum of the losses, the best of 13 weights, chosen for each unit by validation, and `auto`, which has
nothing to choose. Needs scikit-learn.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradhomog

SEEDS, STEPS, BATCH = range(5), 600, 64
WEIGHTS = [10 ** (power / 2) for power in range(-10, 3)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU())
        self.classify, self.reconstruct = nn.Linear(8, 10), nn.Linear(8, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        return self.classify(z), self.reconstruct(z)


def train(method: str, unit: float, seed: int) -> tuple[float, float]:
    """Return the mean of the two errors, 1 − accuracy and 1 − R² of the pixels, on validation and on test examples."""
    torch.manual_seed(seed)
    pixels, classes = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x, order = pixels.float() / 16, torch.randperm(len(pixels))
    parts = order.split([900, 300, 597])
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pipe = gradhomog.pipeline(method)
    for _ in range(STEPS):
        batch = parts[0][torch.randint(900, (BATCH,))]
        logits, decoded = model(x[batch])
        losses = {
            "class": cross_entropy(logits, classes[batch]),
            "pixels": (unit * (decoded - x[batch])).square().mean(),
        }
        optimizer.zero_grad()
        gradhomog.backward(losses, pipe, parameters=model.encoder)
        optimizer.step()

    def error(part: Tensor) -> float:
        with torch.no_grad():
            logits, decoded = model(x[part])
        unexplained = (decoded - x[part]).square().mean() / x[part].var(0).mean()
        wrong = (logits.argmax(1) != classes[part]).double().mean()
        return float(wrong + unexplained) / 2

    return error(parts[1]), error(parts[2])


def main() -> None:
    print(f"test error, mean of {len(SEEDS)} seeds ± 95 % interval; 0: all classes correct, all pixels reconstructed")
    static = {f'static(weights={{"pixels": {weight:g}, "*": 1}})': weight for weight in WEIGHTS}
    for unit in (1.0, 16.0, 255.0):
        found = {
            method: np.array([train(method, unit, seed) for seed in SEEDS]) for method in ["none", "auto", *static]
        }
        best = min(static, key=lambda method: found[method][:, 0].mean())
        for label, method in (("sum", "none"), ("auto", "auto"), (f"weight {static[best]:g}, tuned", best)):
            errors = found[method][:, 1]
            half_width = 2.776 * errors.std(ddof=1) / len(errors) ** 0.5  # Student's t, 4 degrees of freedom
            print(f"pixels to {unit:3g}  {label:20}  {errors.mean():.4f} ± {half_width:.4f}")


if __name__ == "__main__":
    main()
