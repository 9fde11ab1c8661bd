"""A homogenizer that records calls of its stages, as a fixture of the benchmark tests."""

from __future__ import annotations

import importlib

import pytest

# Multiplies the features, and the activations of the encoder that it is attached to.
RECORDING = """
import gradhomog, torch
CALLS = []
class Recording(gradhomog.Homogenizer):
    def __init__(self, factor: float = 2.0):
        self.factor = factor
    def attach(self, encoder):
        CALLS.append("attach")
        return encoder.register_forward_hook(lambda module, given, out: self.factor * out)
    def begin(self, key, part, generator):
        CALLS.append("begin")
    def transform(self, features, keys):
        CALLS.append("transform")
        return self.factor * features
    def update(self, step):
        CALLS.append(("update", step.features.requires_grad, tuple(step.feature_grads.shape)))
        return {}
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Recording, summary="doubles", needs={"features"})
"""


@pytest.fixture
def calls(gradhomog_install):
    """The recorded calls of the homogenizer `recording`, which is installed during the test."""
    gradhomog_install("recording-dist", RECORDING, plugin="recording")
    return importlib.import_module("recording_dist").CALLS
