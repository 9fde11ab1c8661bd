"""The state of Reptile's inner loop: minibatches, and the state of the inner optimizer."""
