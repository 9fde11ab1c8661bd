"""What Reptile needs beside the inner loop: minibatches, and optimizer state that is kept."""
