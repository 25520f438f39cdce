"""Configuration of the documentation's site: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import eoslog

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "eoslog"
author = "the authors of eoslog"
copyright = author  # noqa: A001
release = eoslog.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",
]
exclude_patterns = ["_ext", "reference/_generated"]
nitpicky = True
smartquotes = False  # `--format` in a sentence keeps its two hyphens
# Docstrings write code as Markdown does, `so`.
default_role = "code"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = ["Durability"]
nitpick_ignore_regex = [
    (r"py:.*", r"eoslog\.client\.producer\.transactions\.transaction\.InputConsumer"),  # a protocol
    (r"py:.*", r"eoslog\.coordinator\.positions\.records\.Unchecked"),  # the type of a default
    (r"py:.*", r"eoslog\.(aio\.client\.[CT]|app\.app\.F)"),  # type variables
    # The options of a call: its page lists them, and the configuration has each key.
    (r"py:.*", r"(eoslog\..*\.)?(\w+Options|TopicChanges|Watch)"),
    (r"py:.*", r"(eoslog\.options\.)?(Format|BatchFormat|Guarantee|OnError)"),  # type aliases
    # What a call returns: the description of the call says how to use it.
    (r"py:.*", r"(eoslog\..*\.)?(OffsetStore|HalfTransaction|NamedTransaction)"),
    (r"py:.*", r"(eoslog\..*\.)?(AtomicTransaction|Sink|AsyncSink)"),
    # The standard library and the optional packages have sites of their own.
    (
        r"py:.*",
        r"(builtins|collections|types|typing|os|re|concurrent|asyncio|datetime|pathlib|logging)\..*",
    ),
    (r"py:.*", r"(pyarrow|pa|pandas|polars|numpy|np)\..*"),
    (
        r"py:.*",
        r"(Any|Awaitable|Callable|Iterable|Iterator|Mapping|Sequence|Self|Literal|NamedTuple|TypeVar"
        r"|bool|bytes|bytearray|dict|float|frozenset|int|list|memoryview|object|optional|set|str"
        r"|F|T|Moved|tuple|type|Enum|IntEnum|Exception|OSError|Path|PathLike|TracebackType|UUID|datetime"
        r"|FileNotFoundError|KeyError|TypeError|ValueError|KeyboardInterrupt|RuntimeError"
        r"|TimeoutError|ImportError|LookupError|BaseException|StopIteration|NotImplementedError)",
    ),
]

html_theme = "furo"
html_title = f"eoslog {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"source_directory": "docs/"}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
pygments_style = "friendly"
pygments_dark_style = "monokai"
