"""The parts of invariant self-information: layers, kernel sums of patches, drop probabilities and masks."""
