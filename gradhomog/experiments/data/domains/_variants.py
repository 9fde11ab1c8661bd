"""Validate the variant of a domain, the name after the colon."""

from __future__ import annotations

from collections.abc import Iterable

from gradhomog.errors import OptionError, did_you_mean


def check_variant(domain: str, variant: str, known: Iterable[str]) -> None:
    """Raise `OptionError`, with a suggestion, if a domain has no variant of this name."""
    names = list(known)
    if variant not in names:
        found = repr(variant) if variant else "nothing after the name"
        hint = did_you_mean(variant, names, f"`{domain}:{{}}`")
        raise OptionError(f"`{domain}` needs one of the variants {', '.join(names)}; got {found}.{hint}")
