"""Physics-informed networks: derivatives of a tanh network, and one loss per part of a differential equation."""
