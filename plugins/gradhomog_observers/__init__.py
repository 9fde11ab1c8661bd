"""Observers that come with gradhomog: what runs measure, where other tools look for it."""
