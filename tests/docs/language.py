"""The words that docstrings, comments, messages and pages avoid, and a search for them."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Each pattern with the words to use instead. Software does not speak, hear or see; one clause states one fact.
AVOIDED = {
    r"told|tells?|said|says?|speaks?": "reports, raises, states, requires",
    r"hears?|heard": "receives",
    r"ask(s|ed|ing)?( for)?": "requires, requests, calls, reads",
    r"shown": "reported, printed, drawn",
    r"judg(e|es|ed|ing)": "compared by, scored, rated",
    r"know|knows|knew|known to": "has, reads, supports",
    r"whoever|whatever|whomever": "the user who, any",
    r"of one'?s own|one'?s own": "your own, custom",
    r"comes? through|unhurt|no say|by what|(?<!such )as it is|or itself": "a plain statement of the fact",
}

# At the head of a sentence these words make a riddle of it, unless it is a question.
RIDDLE = re.compile(r"(?:^|(?<=[.:!] ))(?:What|Whatever|Whether|By what)\b[^.?]*(?:[.]|$)")
RIDDLE_FIRST_LINE = re.compile(r"^(?:What|Whatever|Whether|Which|Who|Whose|Where|When|How|By what|That)\b")

_WORDS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in AVOIDED.items()]
_CODE = re.compile(r"`[^`]*`|https?://\S+|“[^”]*”|\"[^\"\n]*\"")


@dataclass(frozen=True)
class Finding:
    """A place with words to avoid."""

    place: str
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text!r}; write: {self.instead}"


def findings(text: str, place: str) -> Iterator[Finding]:
    """Avoided words and sentences that begin as riddles, in a text without code."""
    prose = _CODE.sub("…", text)
    for pattern, instead in _WORDS:
        for match in pattern.finditer(prose):
            yield Finding(place, " ".join(prose[max(0, match.start() - 30) : match.end() + 30].split()), instead)
    for match in RIDDLE.finditer(" ".join(prose.split())):
        yield Finding(place, match.group()[:60], "a noun phrase, or subject, verb, object")


def of_python(path: Path) -> Iterator[Finding]:
    """Findings in the docstrings, comments, messages and names of a module."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if RIDDLE_FIRST_LINE.search(first):
                place = f"{name}:{getattr(node, 'lineno', 1)}"
                yield Finding(place, first[:60], "a noun phrase, or subject, verb, object")
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from findings(node.name.replace("_", " "), f"{name}:{node.lineno}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            text = re.sub(r"^\s*(>>>|\.\.\. ).*$", "", node.value, flags=re.MULTILINE)
            yield from findings(text, f"{name}:{node.lineno}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from findings(token.string.lstrip("# "), f"{name}:{token.start[0]}")


def of_page(path: Path) -> Iterator[Finding]:
    """Findings in a Markdown page or a template, without its code blocks."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    name = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(text.split("\n\n"), start=1):
        yield from findings(line, f"{name}, paragraph {number}")


def of_file(path: Path) -> Iterator[Finding]:
    """Findings in a Python module, a page or a template; none in other files."""
    if path.suffix == ".py":
        yield from of_python(path)
    elif path.suffix in {".md", ".html"}:
        yield from of_page(path)


def project_files() -> list[Path]:
    """The files of the repository or of an unpacked source distribution, without those that list the words."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = ROOT.rglob("*") if listing.returncode else (ROOT / name for name in listing.stdout.split("\0"))
    lists = {Path(__file__), Path(__file__).with_name("test_language.py")}
    return sorted(path for path in paths if path.is_file() and path not in lists)


if __name__ == "__main__":  # `python -m tests.docs.language gradhomog/cli`: the findings in some folders or files
    import sys

    chosen = [Path(start).resolve() for start in sys.argv[1:] or ["."]]
    paths = [path for path in project_files() if any(path.is_relative_to(start) for start in chosen)]
    found = [finding for path in paths for finding in of_file(path)]
    print(*found, f"{len(found)} findings", sep="\n")
