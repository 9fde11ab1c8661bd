"""The parts of MAML++, one per module, independent of each other."""
