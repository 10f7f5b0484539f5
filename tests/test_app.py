"""`load_app`: what a user may write, and what an error says when it is not there (case 44)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.app import load_app
from laneway.errors import AppImportError

GOOD = """
from laneway import Pipeline
{name} = Pipeline()
@{name}.handler
def handle(delivery):
    return "key"
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a current directory of its own, and leaves no module behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith(("shop", "_laneway_app_")):
            del sys.modules[name]
    importlib.invalidate_caches()


def write(path: str, text: str) -> Path:
    """A file below the current directory."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def refusal(spec: str) -> str:
    """The whole message of a spec that cannot be loaded; always exit code 2."""
    with pytest.raises(AppImportError) as refused:
        load_app(spec)
    assert refused.value.exit_code == 2
    return str(refused.value)


@pytest.mark.parametrize(
    "spec", ["shop:pipeline", "shop", "./shop.py:pipeline", "shop.py:pipeline", "./shop.py"]
)
def test_a_pipeline_is_found_by_module_or_file_with_or_without_its_name(spec: str) -> None:
    """Module and file are the same to the user, and a single Pipeline needs no name."""
    write("shop.py", GOOD.format(name="pipeline"))
    assert load_app(spec).has_handler


def test_an_absolute_path_and_a_package_and_a_dotted_name_work(tmp_path: Path) -> None:
    """Whatever Python can name can be named."""
    write("shop_a/work.py", GOOD.format(name="pipeline"))
    write("shop_b/__init__.py", "")
    write("shop_b/deep.py", "class Box:\n    @staticmethod\n    def run(delivery):\n        return None\n")
    assert load_app(f"{tmp_path}/shop_a/work.py:pipeline").has_handler
    assert load_app("shop_b.deep:Box.run").has_handler


def test_a_plain_function_is_an_application() -> None:
    """A function that takes one delivery is enough."""
    write("shop.py", "def handle(delivery):\n    return None\n")
    assert load_app("shop:handle").has_handler


def test_the_same_pipeline_under_two_names_is_one() -> None:
    """An alias does not make the choice ambiguous."""
    write("shop.py", GOOD.format(name="pipeline") + "app = pipeline\n")
    assert load_app("shop").has_handler


def test_a_file_finds_its_neighbours() -> None:
    """A file in another directory imports the modules beside it, as it would when run by Python."""
    write("apps/shop_helper.py", "KEY = 'k'\n")
    write("apps/shop_app.py", "import shop_helper\n" + GOOD.format(name="pipeline"))
    assert load_app("./apps/shop_app.py:pipeline").has_handler


OURS = ["consumer", "store", "cli", "lanes"]


@pytest.mark.parametrize(
    "spec",
    [f"{name}:pipeline" for name in OURS]
    # No module of the last three names is free to be imported; the file is loaded all the same.
    + [f"./{name}.py:pipeline" for name in (*OURS, "laneway", "queue", "my-app")],
)
def test_user_files_with_our_names_work(spec: str) -> None:
    """A file named like a part of Laneway is the user's own, and our parts stay ours."""
    name = Path(spec.partition(":")[0]).name.removesuffix(".py")
    write(f"{name}.py", "MINE = True\n" + GOOD.format(name="pipeline"))
    code = (
        "import sys\n"
        "from laneway.app import load_app\n"
        f"pipeline = load_app({spec!r})\n"
        "assert pipeline.has_handler\n"
        "import laneway.consumer, laneway.lanes.record, laneway.errors, laneway.pipeline\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.partition('.')[0] == 'laneway':\n"
        "        assert not hasattr(module, 'MINE'), name\n"
        "own = sys.modules[pipeline._handler.function.__module__]\n"
        "assert own.MINE and own.pipeline is pipeline\n"
        "print('fine')\n"
    )
    root = Path(__file__).parent.parent
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],  # -P: like the console script, without "" on sys.path
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("fine\n", 0), ran.stderr


def test_a_missing_module_names_path_and_candidates(tmp_path: Path) -> None:
    """Case 44: the message says where was looked first and which modules stand there, likely ones first."""
    write("aaa.py", "")
    write("shop.py", "")
    message = refusal("shpo:pipeline")
    assert "no module named 'shpo'" in message
    assert f"tried first on sys.path: {tmp_path}" in message
    assert "shop, aaa" in message


def test_a_missing_module_inside_a_package_is_named() -> None:
    """Of `shop.work` it is said which of the two is missing."""
    write("shop/__init__.py", "")
    assert "no module named 'shop.work'" in refusal("shop.work:pipeline")


def test_a_missing_file_names_its_path_and_candidates(tmp_path: Path) -> None:
    """Case 44: a file that is not there is named by its whole path, with those that are."""
    write("shop.py", "")
    message = refusal("./shpo.py:pipeline")
    assert f"{tmp_path}/shpo.py: no such file" in message
    assert "shop" in message
    assert "there is no directory" in refusal("./nowhere/shop.py:pipeline")


@pytest.mark.parametrize("spec", ["shop:pipeline", "./shop.py:pipeline"])
def test_a_failed_import_shows_its_last_frame(spec: str, tmp_path: Path) -> None:
    """Case 44: an error inside the user's module is told with class, words, file, line and function."""
    write("shop.py", "def start():\n    import shop_not_installed\nstart()\n")
    message = refusal(spec)
    assert "ModuleNotFoundError: No module named 'shop_not_installed'" in message
    assert f"{tmp_path}/shop.py:2 in start" in message
    assert f"first on sys.path: {tmp_path}" in message


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    """A file that is no Python is told by file and line."""
    write("shop.py", "x = 1\ndef :\n")
    assert f"{tmp_path}/shop.py:2" in refusal("shop:pipeline")


def test_a_module_that_exits_is_an_import_error() -> None:
    """A script that calls sys.exit when imported does not end Laneway without a word."""
    write("shop.py", "import sys\nsys.exit(0)\n")
    assert "SystemExit" in refusal("shop:pipeline")


def test_a_failed_file_can_be_loaded_again() -> None:
    """A half-imported module is not kept: after the mistake is mended the same name loads."""
    write("shop.py", "raise ValueError\n")
    refusal("./shop.py:pipeline")
    write("shop.py", GOOD.format(name="pipeline"))
    assert load_app("./shop.py:pipeline").has_handler


def test_our_own_refusal_keeps_its_words(tmp_path: Path) -> None:
    """A handler that the pipeline refuses is told with the user's line, not with ours."""
    write("shop.py", "from laneway import Pipeline\np = Pipeline()\n@p.handler\ndef h(d): yield\n")
    message = refusal("shop:p")
    assert "a handler returns, it does not yield" in message
    assert f"{tmp_path}/shop.py:3 in <module>" in message


def test_a_missing_name_lists_those_that_look_right() -> None:
    """Case 44: the module's pipelines are offered; without any, its functions, and none that it imported."""
    write("shop.py", "from os.path import join\n" + GOOD.format(name="reminders"))
    message = refusal("shop:reminder")
    assert "there is no 'reminder' in it" in message
    assert "names that could be meant: reminders" in message
    assert "handle" not in message
    write("shop2.py", "from os.path import join\ndef handle(delivery): ...\n")
    assert "names that could be meant: handle" in refusal("shop2:reminder")
    assert "join" not in refusal("shop2:reminder")


def test_the_handler_of_a_pipeline_is_not_run_without_it() -> None:
    """Named alone it would lose the pipeline's payload and decoder, so the pipeline is offered instead."""
    write("shop.py", GOOD.format(name="reminders"))
    message = refusal("./shop.py:handle")
    assert "it is the handler of a Pipeline" in message
    assert "you mean ./shop.py:reminders" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "holds no Pipeline, so one must be named"),
        ("from laneway import Pipeline\na, b = Pipeline(), Pipeline()\n", "name one: shop:a, shop:b"),
        ("def handle(delivery): ...\n", "name one: shop:handle"),
    ],
)
def test_without_a_name_the_choice_must_be_clear(text: str, words: str) -> None:
    """No Pipeline, or two of them, is an error that lists what can be named."""
    write("shop.py", text)
    assert words in refusal("shop")


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("number", "it is an object of class int, neither a Pipeline nor a function"),
        ("Model", "it is a class, neither"),
        ("empty", "the pipeline has no handler"),
        ("two", "exactly one positional argument"),
    ],
)
def test_a_name_that_is_no_application_is_refused(attribute: str, words: str) -> None:
    """What was named is told by its kind, never by its value."""
    write(
        "shop.py",
        "from laneway import Pipeline\nnumber = 4711\nempty = Pipeline()\nclass Model: ...\n"
        "def two(a, b): ...\n",
    )
    message = refusal(f"shop:{attribute}")
    assert words in message
    assert "4711" not in message


@pytest.mark.parametrize("spec", ["", ":", ":pipeline", "shop:a b", "sh op:pipeline", "shop:"])
def test_a_spec_that_cannot_be_read_is_refused_with_an_example(spec: str) -> None:
    """A malformed argument says how it is written."""
    write("shop.py", "")
    assert "next: " in refusal(spec)
