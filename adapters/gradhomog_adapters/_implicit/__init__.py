"""Implicit gradients: the linear systems of iMAML."""
