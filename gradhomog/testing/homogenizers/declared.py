"""What the plugin says about itself: documentation, options, a clean import."""

from __future__ import annotations

from gradhomog.testing.checking import check
from gradhomog.testing.declared import judge_documentation, judge_import, judge_options
from gradhomog.testing.homogenizers.subject import HomogenizerSubject


@check("homogenizers")
def documented(subject: HomogenizerSubject) -> None:
    """Summary, reference and docstring are there, and the docstring names every option.

    `gradhomog show` prints them: they are what a user decides by.
    """
    judge_documentation(subject.spec)


@check("homogenizers")
def options_validated(subject: HomogenizerSubject) -> None:
    """An unknown option, one of a wrong type and NaN are refused by an `OptionError` that names the option."""
    judge_options(subject.spec, subject.pipeline)


@check("homogenizers")
def imports_cleanly(subject: HomogenizerSubject) -> None:
    """The plugin is listed without torch, and importing it needs no optional package and changes nothing global.

    In a fresh interpreter. Listing must import neither torch nor the plugin. Its import must work without the packages
    of its distribution's extras (a solver is imported by who uses it), print nothing, and leave as they were: torch's
    default dtype, number of threads, gradient mode and generators, numpy's and Python's generators.
    """
    judge_import(subject.info)
