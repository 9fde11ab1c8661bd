"""Papers that `gradhomog reproduce` computes: one TOML file each, found by the entry points `gradhomog.papers`."""
