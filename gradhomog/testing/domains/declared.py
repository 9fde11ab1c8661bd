"""What the plugin says about itself: documentation, options, a clean import."""

from __future__ import annotations

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.declared import judge_documentation, judge_import, judge_options
from gradhomog.testing.domains.subject import DomainSubject


@check("domains")
def documented(subject: DomainSubject) -> None:
    """Summary, reference and docstring are there, and the docstring names every option.

    `gradhomog show` prints them: they are what a user decides by.
    """
    judge_documentation(subject.spec)


@check("domains")
def options_validated(subject: DomainSubject) -> None:
    """An unknown option, one of a wrong type and NaN are refused by an `OptionError` that names the option.

    So are, where inputs are images, a `size` of 0 and a negative one.
    """
    judge_options(subject.spec, subject.make)
    if len(subject.domain.input_shape) != 3:
        return  # without images `size` has no meaning
    for size in (0, -1):
        try:
            subject.make(None, size)
        except OptionError as error:
            if "size" in str(error):
                continue
            raise CheckFailure(f"the error about `size`={size} does not name it: {error}") from error
        except GradhomogError as error:
            raise CheckFailure(f"`size`={size} gives {type(error).__name__}, not OptionError: {error}") from error
        raise CheckFailure(f"`size`={size} is accepted: raise gradhomog.OptionError that names it")


@check("domains")
def imports_cleanly(subject: DomainSubject) -> None:
    """The plugin is listed without torch, and importing it needs no optional package and changes nothing global.

    In a fresh interpreter. Listing must import neither torch nor the plugin. Its import must work without the packages
    of its distribution's extras (what draws is imported by who draws), print nothing, and leave as they were: torch's
    default dtype, number of threads, gradient mode and generators, numpy's and Python's generators.
    """
    judge_import(subject.info)
