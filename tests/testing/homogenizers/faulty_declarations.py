"""Homogenizers with faulty documentation or options."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from gradhomog import OptionError
from tests.testing.faults import fails
from tests.testing.homogenizers.good import Balance, Clip


@fails("documented", "`summary` must be one line of 1 to 100 characters; got ''", summary="")
class NoSummary(Clip):
    """An empty summary."""


@fails("documented", "`reference` is empty: give the source", reference="")
class NoReference(Clip):
    """No source."""


@fails("documented", "the factory has no docstring")
class NoDocstring(Clip):
    pass


@fails("documented", "does not describe these options: rate$")
class UndocumentedOption(Balance):
    """Undocumented: the words generates and separate do not describe the option."""


@fails("options_validated", "option `rate` has no type annotation")
class NoAnnotation(Balance):
    """An option without annotation, which accepts any value."""

    def __init__(self, rate=0.5):
        super().__init__(rate)


@fails("options_work", "option `rate`=.* is allowed by its annotation, but raises PluginRunError: .*out of range")
class RaisesValueError(Balance):
    """A ValueError for values outside a range that the annotation does not state."""

    def __init__(self, rate: float = 0.5):
        super().__init__(rate)
        if not 0 < rate <= 1:
            raise ValueError("out of range")


@fails("options_work", "the error for option `rate`=.* names no option: must be positive")
class NamelessError(Balance):
    """An error without the name of the option."""

    def __init__(self, rate: float = 0.5):
        super().__init__(rate)
        if not 0 < rate <= 1:
            raise OptionError("must be positive")


@fails("options_work", "option `rate`=.* is allowed by its annotation, but raises PluginRunError: .*NaN or infinity")
class DividesByRate(Balance):
    """Divides by an option that may be zero."""

    def __init__(self, rate: Annotated[float, Interval(ge=0, le=1)] = 0.5):
        super().__init__(rate)

    def weights(self, norms):
        return super().weights(norms) * self.rate / self.rate
