"""Generate new plugin projects for `gradhomog new`: a complete distribution from templates."""
