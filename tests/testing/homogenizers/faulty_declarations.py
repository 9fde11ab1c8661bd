"""Faulty declarations: documentation and options."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from gradhomog import OptionError
from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip


@fails("documented", "`summary` must be one line of 1 to 100 characters; it is ''", summary="")
class NoSummary(Clip):
    """Nothing to show in a list."""


@fails("documented", "`summary` must be one line", summary="Clips.\nAnd more.")
class SummaryOfTwoLines(Clip):
    """A paragraph where a line is."""


@fails("documented", "`reference` is empty: give the source", reference="")
class NoReference(Clip):
    """No source."""


@fails("documented", "the factory has no docstring")
class NoDocstring(Clip):
    pass


@fails("documented", "does not describe these options: rate$")
class UndocumentedOption(Balance):
    """Undocumented: that it generates or is separate describes no option."""


@fails("options_validated", "option `rate` has no type annotation")
class NoAnnotation(Balance):
    """Takes whatever it is given."""

    def __init__(self, rate=0.5):
        super().__init__(rate)


@fails("options_work", "option `rate`=.* is allowed by its annotation, and raises PluginRunError: .*out of range")
class RaisesValueError(Balance):
    """A range that the annotation does not state, reported as a defect with a traceback."""

    def __init__(self, rate: float = 0.5):
        super().__init__(rate)
        if not 0 < rate <= 1:
            raise ValueError("out of range")


@fails("options_work", "the error about option `rate`=.* names no option: must be positive")
class NamelessError(Balance):
    """An error without the name of the option."""

    def __init__(self, rate: float = 0.5):
        super().__init__(rate)
        if not 0 < rate <= 1:
            raise OptionError("must be positive")


@fails("options_work", "option `rate`=.* is allowed by its annotation, and raises PluginRunError: .*NaN or infinity")
class DividesByRate(Balance):
    """A range that the annotation does not exclude."""

    def __init__(self, rate: Annotated[float, Interval(ge=0, le=1)] = 0.5):
        super().__init__(rate)

    def weights(self, norms):
        return super().weights(norms) * self.rate / self.rate
