"""Checks of variants: those listed can be made, and no others."""

from __future__ import annotations

from gradhomog.domains import Domain
from gradhomog.errors import DataError, OptionError
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.subject import DomainSubject, draw, served_numbers

UNKNOWN = "no_such_variant"


def _listed(subject: DomainSubject) -> tuple[str, ...]:
    variants: tuple[str, ...] = subject.spec.variants
    if not variants:
        raise NotApplicable("it lists no variants: any text may be one")
    return variants


@check("domains")
def variants_made(subject: DomainSubject) -> None:
    """Listed variants can be made and draw tasks under different names, or raise a `DataError` for missing files.

    The first, the middle and the last; a missing package raises a `DataError` too.
    """
    listed = _listed(subject)
    named: dict[str, str] = {}
    for variant in dict.fromkeys((listed[0], listed[len(listed) // 2], listed[-1])):
        try:
            domain = _make(subject, variant)
        except DataError:
            continue
        except OptionError as error:
            raise CheckFailure(f"the variant {variant!r} is listed, and refused: {error}") from error
        if (other := named.setdefault(domain.name, variant)) != variant:
            raise CheckFailure(f"the variants {other!r} and {variant!r} are both called {domain.name!r}")
        numbers = served_numbers(domain, "all")
        if numbers is None:
            raise CheckFailure(f"the variant {variant!r} serves no tasks from the split 'all'")
        draw(domain, "all", 0, numbers)


def _make(subject: DomainSubject, variant: str) -> Domain:
    try:
        return subject.make(variant)
    except OptionError:
        if not subject.options:
            raise
        plain = DomainSubject(subject.spec)  # the options may be of the variant that is checked
        return plain.make(variant)


@check("domains")
def unknown_variant_refused(subject: DomainSubject) -> None:
    """If variants are listed, another one is refused by an `OptionError` or a `DataError` that quotes it."""
    _listed(subject)
    try:
        subject.make(UNKNOWN)
    except (OptionError, DataError) as error:
        if UNKNOWN not in str(error):
            raise CheckFailure(f"the variant {UNKNOWN!r} is refused without quoting it: {error}") from error
    else:
        raise CheckFailure(f"the variant {UNKNOWN!r} is accepted, though it is not among those listed")
