"""The network as a function of named tensors, and the contexts in which it runs."""
