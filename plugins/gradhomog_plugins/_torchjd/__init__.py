"""The parts of the bridge to TorchJD: which aggregator with which options, what it keeps, at which stage it acts."""
