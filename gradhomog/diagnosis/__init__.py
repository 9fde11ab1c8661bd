"""Diagnosis of task gradients: signal, noise and conflict, estimated from the rows of independent batches."""
