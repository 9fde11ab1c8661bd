"""With several ranks, homogenization in one process raises, because replicas would diverge."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import gradhomog


def rank(index, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=index, world_size=2)
    model = torch.nn.Linear(3, 2)
    replica = torch.nn.parallel.DistributedDataParallel(model)
    for call in ("backward", "loss", "accumulated"):
        losses = list(replica(torch.ones(4, 3)).square().mean(0))
        try:
            if call == "accumulated":
                with gradhomog.accumulated(gradhomog.pipeline("none"), parameters=model) as several:
                    several.add(losses)
            else:
                getattr(gradhomog, call)(losses, gradhomog.pipeline("none"), parameters=model)
        except gradhomog.OptionError as error:
            assert "one of 2 ranks" in str(error), error
        else:
            raise AssertionError(f"{call} took a step")
        assert all(parameter.grad is None for parameter in model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Forked after all imports: spawned ranks would repeat the imports, which take longer than the test.
        gradhomog.pipeline("none"), gradhomog.accumulated, gradhomog.backward, gradhomog.loss
        mp.start_processes(rank, (os.path.join(folder, "store"),), nprocs=2, start_method="fork")
    print("all raised")
"""


@pytest.mark.slow
def test_two_ranks_raise_before_gradients_are_written(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "all raised\n", done.stderr[-2000:]
