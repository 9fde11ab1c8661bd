"""Faulty in what they say about themselves, and in what options they take."""

from __future__ import annotations

from gradhomog import OptionError
from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip


@fails("documented", "`summary` must be one line of 1 to 100 characters; it is ''", summary="")
class NoSummary(Clip):
    """Nothing to show in a list."""


@fails("documented", "`summary` must be one line", summary="Clips.\nAnd more.")
class SummaryOfTwoLines(Clip):
    """A paragraph where a line is."""


@fails("documented", "`reference` is empty: say where it comes from", reference="")
class NoReference(Clip):
    """Nobody can look it up."""


@fails("documented", "the factory has no docstring")
class NoDocstring(Clip):
    pass


@fails("documented", "does not say what these options do: rate$")
class UndocumentedOption(Balance):
    """Options are left to be guessed; that it generates or is separate says nothing of one."""


@fails("options_validated", "option `rate` has no type annotation")
class NoAnnotation(Balance):
    """Takes whatever it is given."""

    def __init__(self, rate=0.5):
        super().__init__(rate)


@fails("options_validated", "option `rate`=nan is accepted: raise gradhomog.OptionError that names it")
class AcceptsNaN(Balance):
    """Asks whether the rate is out of range, which NaN never is."""

    def __init__(self, rate: float = 0.5):
        if rate <= 0 or rate > 1:
            raise OptionError(f"`rate` must be in (0, 1]; got {rate!r}.")
        super().__init__()
        self.rate = rate


@fails("options_validated", r"option `powers`=\[nan\] is accepted")
class AcceptsNaNInList(Balance):
    """Looks at the list's length only."""

    def __init__(self, powers: list[float] | None = None):
        super().__init__()
        self.powers = powers


@fails("options_validated", "`rate`=nan gives PluginRunError, not OptionError: .*ValueError: out of range")
class RaisesValueError(Balance):
    """What a user is told of as a defect, with a traceback."""

    def __init__(self, rate: float = 0.5):
        if not 0 < rate <= 1:
            raise ValueError("out of range")
        super().__init__(rate)


@fails("options_validated", "the error about option `rate`=nan does not name it: must be positive")
class NamelessError(Balance):
    """Says what is wrong, and not with what."""

    def __init__(self, rate: float = 0.5):
        if not 0 < rate <= 1:
            raise OptionError("must be positive")
        super().__init__(rate)
