"""Checks of variants: listed variants can be made, unlisted ones are rejected."""

from __future__ import annotations

from gradhomog.errors import DataError, OptionError
from gradhomog.learners.domains import Domain
from gradhomog.testing.check import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.subject import DomainSubject, draw_task, supported_numbers

UNKNOWN = "no_such_variant"


def _listed(subject: DomainSubject) -> tuple[str, ...]:
    variants: tuple[str, ...] = subject.spec.variants
    if not variants:
        raise NotApplicable("the domain lists no variants, so any string may be a variant")
    return variants


@check("domains")
def listed_variants_work(subject: DomainSubject) -> None:
    """Listed variants can be made and draw tasks under different names, or raise a `DataError` for missing files.

    The first, the middle and the last variant are checked. A missing package raises a `DataError` too.
    """
    listed = _listed(subject)
    variants_by_name: dict[str, str] = {}
    for variant in dict.fromkeys((listed[0], listed[len(listed) // 2], listed[-1])):
        try:
            domain = _make(subject, variant)
        except DataError:
            continue
        except OptionError as error:
            raise CheckFailure(f"the listed variant {variant!r} is rejected: {error}") from error
        if (other := variants_by_name.setdefault(domain.name, variant)) != variant:
            raise CheckFailure(f"the variants {other!r} and {variant!r} have the same name {domain.name!r}")
        numbers = supported_numbers(domain, "all")
        if numbers is None:
            raise CheckFailure(f"the variant {variant!r} has no tasks in the split 'all'")
        draw_task(domain, "all", 0, numbers)


def _make(subject: DomainSubject, variant: str) -> Domain:
    try:
        return subject.make(variant)
    except OptionError:
        if not subject.options:
            raise
        without_options = DomainSubject(subject.spec)  # the options may be valid only for the variant under check
        return without_options.make(variant)


@check("domains")
def unknown_variant_rejected(subject: DomainSubject) -> None:
    """If variants are listed, another variant raises an `OptionError` or a `DataError` that quotes it."""
    _listed(subject)
    try:
        subject.make(UNKNOWN)
    except (OptionError, DataError) as error:
        if UNKNOWN not in str(error):
            raise CheckFailure(f"the variant {UNKNOWN!r} is rejected without quoting it: {error}") from error
    else:
        raise CheckFailure(f"the variant {UNKNOWN!r} is accepted although it is not listed")
