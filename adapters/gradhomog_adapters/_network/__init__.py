"""A network as a function of named tensors, and the modes it is called in."""
