"""What the plugin says about itself: documentation, options, a clean import."""

from __future__ import annotations

from typing import Any

from gradhomog.learners import Learner
from gradhomog.testing.arena import network
from gradhomog.testing.checking import check
from gradhomog.testing.declared import judge_documentation, judge_import, judge_options
from gradhomog.testing.learners.subject import LearnerSubject


@check("learners")
def documented(subject: LearnerSubject) -> None:
    """Summary, reference and docstring are there, and the docstring names every option.

    `gradhomog show` prints them: they are what a user decides by.
    """
    judge_documentation(subject.spec)


@check("learners")
def options_validated(subject: LearnerSubject) -> None:
    """An unknown option, one of a wrong type and NaN are refused by an `OptionError` that names the option."""

    def make(**options: Any) -> Learner:
        return subject.make(*network(), **options)

    judge_options(subject.spec, make)


@check("learners")
def imports_cleanly(subject: LearnerSubject) -> None:
    """The plugin is listed without torch, and importing it needs no optional package and changes nothing global.

    In a fresh interpreter. Listing must import neither torch nor the plugin. Its import must work without the packages
    of its distribution's extras, print nothing, and leave as they were: torch's default dtype, number of threads,
    gradient mode and generators, numpy's and Python's generators.
    """
    judge_import(subject.info)
