"""The parts of MAML++, one to a file; each works without the others."""
