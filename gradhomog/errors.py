"""Errors that name the thing, what was expected, what was found, and what to do.

The command line prints any `GradhomogError` as one message and exits with code 2; everything else is a defect of ours
and keeps its traceback. No torch here: the command line imports this module before anything heavy.
"""

_SHOWN = 200  # characters of a line


class GradhomogError(Exception):
    """Base of all errors that a user, a plugin or an input can cause."""


class OptionError(GradhomogError, ValueError):
    """An option of a homogenizer, learner or domain is unknown, of the wrong type or out of range."""


class ExpressionError(OptionError):
    """The text form of a pipeline does not parse; the message holds the text and a caret under the character.

    `position` is the index of that character, counted from 0.
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason, self.text, self.position = reason, text, position
        start = text.rfind("\n", 0, position) + 1  # of a text over several lines only the one with the fault is shown
        line, place = text[start:].partition("\n")[0].replace("\t", " "), position - start
        if len(line) > _SHOWN:  # of a long line the part around the fault
            first = max(0, min(place - _SHOWN // 2, len(line) - _SHOWN))
            line, place = f"…{line[first : first + _SHOWN]}…", place - first + 1
        super().__init__(f"{reason}\n  {line}\n  {' ' * place}^")


class PluginError(GradhomogError):
    """Something is wrong with a plugin; the message names it, its distribution and its version."""


class UnknownPluginError(PluginError, LookupError):
    """No installed distribution offers a plugin of this name."""


class AmbiguousPluginError(PluginError):
    """Several installed distributions offer a plugin of this name."""


class DisabledPluginError(PluginError):
    """The environment variable GRADHOMOG_DISABLE blocks this plugin."""


class PluginLoadError(PluginError):
    """The plugin's module does not import, or its hook is missing, misspelt or returns the wrong type."""


class PluginRunError(PluginError):
    """A plugin raised, or returned something unusable, while it was used."""


class NonfiniteError(GradhomogError, ArithmeticError):
    """A loss or a row holds NaN or infinity and the policy is `nonfinite="raise"`."""


class NotDifferentiableError(GradhomogError):
    """A pipeline with a homogenizer that is not differentiable was called with `create_graph=True`."""


class ConvergenceWarning(UserWarning):
    """An iterative solver of a homogenizer stopped before it converged; the step was taken with its last iterate."""


class DataError(GradhomogError, ValueError):
    """A data file, a domain or a split cannot serve the requested episodes."""


class ConfigError(GradhomogError, ValueError):
    """A run file, a `--set` override or a run folder is not usable; the message gives the key path."""
