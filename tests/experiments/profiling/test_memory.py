"""Peak memory of calls that allocate tensors of known sizes."""

import torch

from gradhomog.experiments.profiling import harness


def test_peak_memory_counts_what_is_live_at_one_time():
    kilobyte = 1024

    def workload():
        one = torch.empty(64 * kilobyte, dtype=torch.uint8)
        two = torch.empty(32 * kilobyte, dtype=torch.uint8)
        del one
        three = torch.empty(48 * kilobyte, dtype=torch.uint8)
        return two, three

    assert harness.peak_bytes(workload) == 96 * kilobyte
    assert harness.peak_bytes(lambda: None) == 0


def test_peak_memory_counts_the_backward_pass_too():
    x = torch.ones(1000, requires_grad=True)
    forward = harness.peak_bytes(lambda: (x * 2).exp().exp().sum())
    assert harness.peak_bytes(lambda: (x * 2).exp().exp().sum().backward()) >= forward + x.nbytes


def test_tensor_bytes_counts_all_tensors():
    state = {"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64), {"c": 5}], "d": "text"}
    assert harness.tensor_bytes(state) == 12 + 16
