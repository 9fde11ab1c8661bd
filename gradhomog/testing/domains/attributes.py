"""What others build on before a task is drawn: that one can be, the attributes, the size of images."""

from __future__ import annotations

from gradhomog.errors import DataError, OptionError
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.subject import SIZE, DomainSubject

ANOTHER = 20  # pixels


@check("domains")
def draws_tasks(subject: DomainSubject) -> None:
    """It can be made with images of 28 pixels, and every split whose `check` accepts some numbers draws a task.

    At least one split serves two ways, one shot and one query. The other checks need it: where this one fails, those
    that need tasks do not apply.
    """
    if subject.trouble:
        raise CheckFailure(subject.trouble)


@check("domains")
def attributes(subject: DomainSubject) -> None:
    """`name` is a text, `input_shape` a tuple of positive integers, `outputs` None or a positive integer.

    Those of two made alike are the same: networks are built and reports written by them.
    """
    domain, other = subject.domain, subject.another()
    if not isinstance(domain.name, str) or not domain.name.strip():
        raise CheckFailure(f"`name` must be a text that is not empty; it is {domain.name!r}")
    shape, outputs = domain.input_shape, domain.outputs
    if not isinstance(shape, tuple) or not shape or not all(_positive(length) for length in shape):
        raise CheckFailure(f"`input_shape` must be a tuple of positive integers; it is {shape!r}")
    if outputs is not None and not _positive(outputs):
        raise CheckFailure(f"`outputs` must be None (classification) or a positive integer; it is {outputs!r}")
    for name in ("name", "input_shape", "outputs"):
        if getattr(domain, name) != getattr(other, name):
            raise CheckFailure(f"`{name}` of two made alike: {getattr(domain, name)!r} and {getattr(other, name)!r}")


def _positive(value: object) -> bool:
    return type(value) is int and value > 0  # neither True nor an integer of numpy


@check("domains")
def size_kept(subject: DomainSubject) -> None:
    """Images have the side that was asked for, or a size is refused by an error that names it.

    Domains are trained on together: `input_shape` is `(channels, size, size)` whatever the data's own size is.
    """
    if len(subject.domain.input_shape) != 3:
        raise NotApplicable("its inputs are not images")
    for size in (SIZE, ANOTHER):
        try:
            shape = subject.make(None, size).input_shape
        except (OptionError, DataError) as error:
            if "size" not in str(error):
                raise
            continue
        if shape[1:] != (size, size):
            raise CheckFailure(f"made with size={size}, it has inputs of the shape {shape}")
