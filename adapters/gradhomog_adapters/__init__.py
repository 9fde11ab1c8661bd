"""The first-party learners: one module each, driven by TorchOpt's functional transformations."""
