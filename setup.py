"""Build the one compiled module; everything else is in pyproject.toml."""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("EOSLOG_DEBUG") == "1"
OPTIMIZE = os.environ.get("EOSLOG_OPTIMIZE", "-O0" if DEBUG else "-O3")
SECTIONS = sorted(
    path
    for pattern in ("*.px[id]", "*.h")
    for path in glob(f"eoslog/_core/**/{pattern}", recursive=True)
)
C_SOURCES = sorted(glob("eoslog/_core/**/*.c", recursive=True))

core = Extension(
    "eoslog._core",
    sources=["eoslog/_core.pyx", *C_SOURCES],
    depends=SECTIONS,
    include_dirs=sorted({os.path.dirname(path) for path in SECTIONS if path.endswith(".h")}),
    extra_compile_args=[OPTIMIZE, "-g1", "-fno-strict-aliasing", "-pthread"],
    extra_link_args=["-pthread"],
    define_macros=[("_GNU_SOURCE", "1")],
)

setup(
    ext_modules=cythonize(
        [core],
        compiler_directives={"linetrace": DEBUG},
        show_all_warnings=False,
        quiet=True,
    )
)
