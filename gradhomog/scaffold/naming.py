"""Names of a plugin, its distribution, module and class, derived from the name that a user types."""

from __future__ import annotations

import builtins
import keyword
import re
from dataclasses import dataclass

from gradhomog.errors import OptionError

PREFIX = "gradhomog-"
LONGEST = 28  # with more, the import lines of the generated modules pass 120 columns
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# They have another meaning in the text of a pipeline.
_WORDS = frozenset({"none", "true", "false", "inf"})


@dataclass(frozen=True)
class Names:
    """The names of one plugin.

    Attributes:
        plugin: `sign_vote`, the entry point: what users type.
        distribution: `gradhomog-sign-vote`, what is installed, and the folder of the project.
        module: `gradhomog_sign_vote`, what is imported.
        stem: `SignVote`, the class, unless that name is taken.
    """

    plugin: str

    @property
    def distribution(self) -> str:
        return PREFIX + self.plugin.replace("_", "-")

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def stem(self) -> str:
        return "".join(part.capitalize() for part in self.plugin.split("_"))

    def class_name(self, kind: str, source: str) -> str:
        """The name of the class: `SignVote`, or `SignVoteHomogenizer` where the source uses that name otherwise."""
        taken = keyword.iskeyword(self.stem) or hasattr(builtins, self.stem)
        if taken or re.search(rf"\b{self.stem}\b", source):
            return self.stem + kind.capitalize()
        return self.stem


def names(given: str) -> Names:
    """Read `sign-vote`, `sign_vote` or `gradhomog-sign-vote`: all mean the same plugin.

    >>> names("gradhomog-sign-vote")
    Names(plugin='sign_vote')

    Raises:
        OptionError: it is not a valid name; the message suggests one.
    """
    plugin = given.replace("-", "_").removeprefix("gradhomog_")
    if not _PLUGIN.fullmatch(plugin):
        raise _refusal(given, "must be lower-case letters, digits and single hyphens, beginning with a letter")
    if keyword.iskeyword(plugin):
        raise _refusal(given, "must be no keyword of Python")
    if plugin in _WORDS:
        raise _refusal(given, "must be no word with another meaning in a pipeline")
    if plugin == "gradhomog":
        raise _refusal(given, "must name the plugin, not gradhomog")
    if len(plugin) > LONGEST:
        raise _refusal(given, f"must have at most {LONGEST} letters")
    return Names(plugin)


def _refusal(given: str, expected: str) -> OptionError:
    return OptionError(f"the name of a plugin {expected}; got {given!r}. Write {_similar(given)!r}, for example.")


def _similar(given: str) -> str:
    """A valid name similar to the given one."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).removeprefix(PREFIX).strip("-0123456789")
    words = words[:LONGEST].strip("-")
    plugin = words.replace("-", "_")
    if not plugin or plugin == "gradhomog":
        return "sign-vote"
    if keyword.iskeyword(plugin) or plugin in _WORDS:
        return f"{words}-rows"
    return words
