"""Trainings with TRL in two processes, for `test_trl.py`; for torchrun."""

import gc
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
import torch
from trl import DPOTrainer, GRPOTrainer

from gradhomog_adapters.trl import HomogenizedDPOTrainer, HomogenizedGRPOTrainer

from .measures import parameters
from .torchrun import save
from .trl_models import MPO, NORMALIZED, dpo, even, grpo, llama, low, sometimes


def main(out: str) -> None:
    warnings.simplefilter("ignore")
    datasets.disable_progress_bars()
    gc.freeze()  # Accelerate collects garbage after each training
    torch.set_default_dtype(torch.float64)
    folder, found = Path(out), dict[Any, Any]()
    # The generations of a prompt are on both processes.
    options = {"ddp_backend": "gloo", "rewards": [even, low, sometimes], "num_generations": 16, "entropy_coef": 0.01}
    for text in (None, "none", NORMALIZED):
        trainer = grpo(GRPOTrainer if text is None else HomogenizedGRPOTrainer, folder, homogenizers=text, **options)
        found["grpo", text] = parameters(trainer.model)
    batch = trainer._buffered_inputs[0]
    found["terms"], found["advantages"] = batch["advantages_by_reward"], batch["advantages"]
    for text in (None, "none", NORMALIZED):
        kind = DPOTrainer if text is None else HomogenizedDPOTrainer
        found["dpo", text] = parameters(dpo(kind, folder, MPO, homogenizers=text, ddp_backend="gloo").model)
    found["grpo", "start"] = found["dpo", "start"] = parameters(llama())
    save(out, found)


if __name__ == "__main__":
    main(sys.argv[1])
