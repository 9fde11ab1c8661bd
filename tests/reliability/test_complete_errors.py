"""Complete errors: one message names all errors of an input, with exit code 2."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gradhomog import ConfigError, DataError
from gradhomog.cli import main
from gradhomog.experiments.episodes.splits import streams
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.run_file.schema import load


def test_all_wrong_homogenizers_and_options_are_named_once() -> None:
    texts = ["pcgard", "mgdaa + sttic | rotate(stpes=1, angel=2)", "none", "pcgrad(order=3", "cagrad(c=-1)"]
    config = load(None, [f"homogenizers={texts!r}", 'learner=["maml", "fomaml"]'])
    with pytest.raises(ConfigError, match="`homogenizers`: 6 errors:") as caught:
        make_methods(config)
    message = str(caught.value)
    for part in ("'pcgard'", "'mgdaa'", "'sttic'", "'stpes'", "'angel'", "expected ',' or ')'", "`c` must be"):
        assert message.count(part) == 1, part


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['homogenizers=["pcgrad(order=3, sed=1)"]'], "2 errors:.*`order` must be.*no option 'sed'"),
        (["domains.test=[]", "seeds=[1, 1]"], "`domains.test` must have .*`seeds` must not contain dup"),
        (["colour=1"], r"^unknown key `colour`\."),  # not a list
        (
            ['domains.train=["functions:line"]', 'domains.test=["glyphs:tifinagh(instances=2)"]'],
            "functions:line is regression with 1 target, and glyphs:tifinagh is class",
        ),
    ],
)  # fmt: skip
def test_the_errors_of_settings_are_named_together(settings: list[str], message: str) -> None:
    def prepare() -> None:
        config = load(None, settings)
        make_methods(config)
        streams(config, 0)

    with pytest.raises(ConfigError, match=f"(?s){message}"):
        prepare()


def test_all_wrong_keys_of_a_run_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('colour = 3\nthreads = 0\nepisodes = 1\n[train]\nstpes = 3\nsteps = "many"\ninner_lr = -1\n')
    with pytest.raises(ConfigError, match=r"run\.toml: 6 errors:") as caught:
        load(path)
    for key in ("colour", "threads", "episodes", "train.stpes", "train.steps", "train.inner_lr"):
        assert f"`{key}`" in str(caught.value)


def test_all_domains_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    texts = [f"{tmp_path}/one.npz", "functoins:line", "functions:line"]
    config = load(None, [f"domains.train={texts}", 'domains.test=["functions:stp"]', "network.name=mlp"])
    with pytest.raises(ConfigError, match="`domains`: 3 errors:") as caught:
        streams(config, 0)
    for part in ("one.npz: there is no such file", "'functoins'", "functions:stp"):
        assert part in str(caught.value)


def test_all_unusable_domains_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        names = np.array([f"class {index}" for index in range(8)])
        np.savez(tmp_path / name, images=np.zeros((8, 16, 16), dtype=np.uint8), labels=np.arange(8), class_names=names)
    texts = [f"{tmp_path}/{name}.npz" for name in ("one", "two")]
    config = load(None, [f"domains.train={texts[:1]}", f"domains.test={texts[1:]}", "network.size=16"])
    with pytest.raises(ConfigError, match=r"(?s)3 errors:.*'one', split 'train'.*'two', split 'all'"):
        streams(config, 0)
    alone = load(None, [f"domains.train={texts[:1]}", 'domains.test=["glyphs:braille"]', "network.size=16"])
    with pytest.raises((ConfigError, DataError), match="'one', split 'train'"):
        streams(alone, 0)


def test_check_finds_all_plugins_before_the_first_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "static", "pcgard", "mmal", "--only", "documented"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "'pcgard'. Did you mean 'pcgrad'?" in printed.err
    assert "'mmal'" in printed.err


@pytest.mark.parametrize("count", [1001, 10_000_000, 2**32])
def test_too_many_seeds_are_rejected_without_allocating_them(count: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=rf"`seeds` must be at most 1000.* got {count}\. .*seeds=\[{count}\]"):
            load(None, [f"seeds={count}"])
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert load(None, [f"seeds=[{count - 1}]"]).seed_list == [count - 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seeds = {'[' * 60}{']' * 60}", "tables and lists may be nested 50 deep"),
        (f"seeds = {'9' * 5000}", "an integer may have 1000 digits"),
        ("#" * 32_767 + "é", "has 32,769 bytes; at most 32,768 bytes are read"),
    ],
    ids=range(3),
)
def test_the_limits_of_a_run_file_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"run\.toml: .*{message}"):
        load(tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.toml", "none.toml: there is no such file."), (".", ".: must be a regular file; got a folder.")],
)
def test_the_error_of_an_unreadable_run_file_has_no_error_number(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", name]) == 2
    assert capsys.readouterr().err == f"gradhomog: {message}\n"
