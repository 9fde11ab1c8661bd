"""The implementation of `meta_step` for custom TorchOpt loops."""
