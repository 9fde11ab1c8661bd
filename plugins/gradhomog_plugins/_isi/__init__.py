"""The parts of invariant self-information: which layers, how common their patches are, what is dropped."""
