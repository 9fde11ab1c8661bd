"""Fixtures for authors of plugins, in every pytest run of an environment with gradhomog: no torch at import."""
