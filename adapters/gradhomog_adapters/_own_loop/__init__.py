"""What `meta_step` does in a TorchOpt loop of one's own."""
