"""Papers that `gradhomog reproduce` computes: one TOML file each."""
