"""The names of a plugin's distribution, module and class, derived from the plugin's name."""

from __future__ import annotations

import builtins
import keyword
import re
from dataclasses import dataclass

from gradhomog.errors import OptionError

PREFIX = "gradhomog-"
LONGEST = 28  # longer names make the import lines of the generated modules longer than 120 columns
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Reserved in the text form of a pipeline.
_WORDS = frozenset({"none", "true", "false", "inf"})


@dataclass(frozen=True)
class Names:
    """The names of one plugin.

    Attributes:
        plugin: `sign_vote`, the entry point, which users write.
        distribution: `gradhomog-sign-vote`, which is installed; also the folder of the project.
        module: `gradhomog_sign_vote`, which is imported.
        stem: `SignVote`, the name of the class, unless it is in use.
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
        """Return the name of the class: `SignVote`, or `SignVoteHomogenizer` if the source already uses that name."""
        taken = keyword.iskeyword(self.stem) or hasattr(builtins, self.stem)
        if taken or re.search(rf"\b{self.stem}\b", source):
            return self.stem + kind.removesuffix("s").capitalize()
        return self.stem


def names(given: str) -> Names:
    """Return the names of the plugin `sign-vote`, also written `sign_vote` or `gradhomog-sign-vote`.

    >>> names("gradhomog-sign-vote")
    Names(plugin='sign_vote')

    Raises:
        OptionError: the name is invalid; the message suggests a valid one.
    """
    plugin = given.replace("-", "_").removeprefix("gradhomog_")
    rules = {
        "start with a letter and contain only lower-case letters, digits and single hyphens": _PLUGIN.fullmatch(plugin),
        "not be a keyword of Python": not keyword.iskeyword(plugin),
        "not be a reserved word of the text form of a pipeline": plugin not in _WORDS,
        "not be gradhomog itself": plugin != "gradhomog",
        f"have at most {LONGEST} characters": len(plugin) <= LONGEST,
    }
    for rule, holds in rules.items():
        if not holds:
            raise OptionError(
                f"the name of a plugin must {rule}; got {given!r}. Write {_similar(given)!r}, for example."
            )
    return Names(plugin)


def _similar(given: str) -> str:
    """Return a valid name that is similar to the given name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).removeprefix(PREFIX).strip("-0123456789")
    words = words[:LONGEST].strip("-")
    plugin = words.replace("-", "_")
    if not plugin or plugin == "gradhomog":
        return "sign-vote"
    if keyword.iskeyword(plugin) or plugin in _WORDS:
        return f"{words}-rows"
    return words
