"""New plugin projects: a complete distribution written from templates, for `gradhomog new`."""
