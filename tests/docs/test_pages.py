"""Every code block of README and the user pages runs in its page's order and prints what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from tests.docs import pages
from tests.paths import ROOT

PLAIN = [page for page in pages.PAGES if pages.has_blocks(page) and not pages.is_spark(page)]
TUTORIALS = [page for page in PLAIN if page.parent.name == "tutorials"]
OTHERS = [page for page in PLAIN if page not in TUTORIALS]


def run(chosen: list[Path], directory: Path, *words: str) -> None:
    """Run pages in a process, as a user with a new terminal would."""
    package = Path(eoslog.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs", *map(str, chosen), *words],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


@pytest.mark.process
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", OTHERS, ids=pages.name)
def test_the_blocks_of_a_page_run_twice_in_one_directory(page: Path, tmp_path: Path) -> None:
    run([page], tmp_path)
    run([page], tmp_path, "--again")


@pytest.mark.process
@pytest.mark.timeout(1200)
def test_the_tutorials_run_in_order_twice_in_one_directory(tmp_path: Path) -> None:
    index = pages.DOCS / "tutorials" / "index.md"
    if not index.exists():
        pytest.skip("the docs are not beside the tests")
    order = re.findall(r"^([\w-]+)$", index.read_text(), re.MULTILINE)
    chosen = [pages.DOCS / "tutorials" / f"{word}.md" for word in order]
    chosen = [page for page in chosen if page in TUTORIALS]
    assert sorted(chosen) == TUTORIALS, "the index lists every tutorial"
    run(chosen, tmp_path)
    run(chosen, tmp_path, "--again")


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_block_that_is_not_run_says_why(page: Path) -> None:
    if page != pages.README:
        assert pages.faults(page.read_text()) == []


PAGE = """# A page

```python
print("one")
x = 1
```

It prints:

```text
o...e
```

Save this as `part/two.py`:

```python
print("two")
```

1. Run it:

   ```console
   $ python part/two.py
   two
   $ echo "a
   ```

<!-- raises ZeroDivisionError -->
```python
1 / (x - 1)
```

```text
builtins.ZeroDivisionError: ...
```

<!-- setup
print("hidden")
-->

<!-- not run: it needs a cluster -->
```py
spark.stop()
```
""".replace('   $ echo "a\n', "")


def test_blocks_keep_their_place_their_file_and_their_output() -> None:
    found = pages.parse(PAGE)
    assert [block.language for block in found] == [
        "python",
        "python",
        "console",
        "python",
        "python",
        "py",
    ]
    assert [block.file for block in found] == [None, "part/two.py", None, None, None, None]
    assert found[0].output is not None and found[0].output.code == "o...e\n"
    assert PAGE.splitlines()[found[0].line - 1] == 'print("one")'
    assert found[2].code == "$ python part/two.py\ntwo\n"
    assert pages.faults(PAGE) == []


def test_a_page_runs_in_order_in_one_namespace(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    run([tmp_path / "page.md"], tmp_path)
    assert (tmp_path / "part" / "two.py").read_text() == 'print("two")\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("o...e", "oh", "the page shows\n    oh"),
        ("o...e\n```\n", "one\n```\n\n```python\nprint(2)\n```\n", "the block prints, and no"),
        ("two\n   ```", "three\n   ```", "the page shows\n    three"),
        ("python part/two.py", "python part/three.py", "exits with 2, not 0"),
        ("(x - 1)", "x", "ZeroDivisionError was not raised"),
        ("raises ZeroDivisionError", "raises ValueError", "the block raised ZeroDivisionError"),
        ("x = 1\n", "y = 1\n", "the block raised NameError"),
    ],
)
def test_a_page_that_shows_something_else_fails(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in PAGE
    (tmp_path / "page.md").write_text(PAGE.replace(old, new, 1))
    with pytest.raises(AssertionError, match=re.escape(said)):
        run([tmp_path / "page.md"], tmp_path)


def test_output_of_the_first_run_is_compared_once(tmp_path: Path) -> None:
    text = """```python
from pathlib import Path
print(Path("made").exists())
Path("made").touch()
```

<!-- first run -->
```text
False
```
"""
    (tmp_path / "page.md").write_text(text)
    run([tmp_path / "page.md"], tmp_path)
    run([tmp_path / "page.md"], tmp_path, "--again")
    with pytest.raises(AssertionError, match="the page shows"):
        run([tmp_path / "page.md"], tmp_path)


def test_a_block_that_is_not_run_needs_a_reason() -> None:
    assert pages.faults("# P\n\n```py\nx\n```\n") == ["line 4: say why: <!-- not run: REASON -->"]
    assert pages.faults("```sh\npip install eoslog\n```\n") == []
    assert pages.faults("```sh\nmake test\n```\n") != []
