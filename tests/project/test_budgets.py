"""The limits of an import and of an installation: modules, bytes and packages."""

import re
import subprocess
import sys
import zlib
from importlib.metadata import PackageNotFoundError, distribution

import pytest

MOST_MODULES_OF_AN_IMPORT = 55
MOST_MODULES_OF_A_FIRST_USE = 315
"""Without numpy's own."""
MOST_BYTES_OF_A_WHEEL = 2_220_000
"""Compressed, with the symbols that a local build keeps; `make wheel` leaves them out."""
REQUIRED_PACKAGES = ["numpy"]

HEAVY = (
    "asyncio click inspect json multiprocessing numpy pandas pyarrow pyspark rich ssl subprocess"
)
"""Modules that `import eoslog` does not need, and that take longer than all that it needs."""
NEVER = "asyncio click multiprocessing pandas pyarrow pyspark rich ssl subprocess"
"""Modules that opening, producing and reading do not need."""

FIRST_USE = """
import tempfile
with tempfile.TemporaryDirectory() as place, eoslog.open(place + "/log") as log:
    log.create_topic("t")
    with log.producer() as producer:
        producer.produce("t", value="1")
    assert [record.value for record in log.read("t")] == [b"1"]
"""


def modules_loaded_by(program: str) -> set[str]:
    """Return the modules that a fresh interpreter loads for a program."""
    counted = (
        f"import sys\nbefore = set(sys.modules)\nimport eoslog\n{program}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    return set(
        subprocess.run(
            [sys.executable, "-c", counted], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def installed():
    try:
        found = distribution("eoslog")
    except PackageNotFoundError:
        pytest.skip("eoslog is not installed")
    if "site-packages" not in str(found.locate_file("eoslog")):
        pytest.skip("not installed from a wheel")
    return found


def test_import_loads_few_modules_and_no_heavy_one():
    loaded = modules_loaded_by("")
    assert "eoslog" in loaded
    assert not loaded & {*HEAVY.split(), "eoslog._core", "eoslog.log"}
    assert len(loaded) <= MOST_MODULES_OF_AN_IMPORT, sorted(loaded)


@pytest.mark.process
def test_first_use_loads_few_modules_and_no_extra():
    loaded = modules_loaded_by(FIRST_USE)
    assert "eoslog._core" in loaded
    assert not loaded & set(NEVER.split())
    loaded = {name for name in loaded if not name.startswith("numpy")}
    assert len(loaded) <= MOST_MODULES_OF_A_FIRST_USE, sorted(loaded)


def test_a_wheel_is_small():
    files = [file for file in installed().files or () if "__pycache__" not in str(file)]
    size = sum(len(zlib.compress(file.locate().read_bytes())) for file in files)
    assert 200_000 < size <= MOST_BYTES_OF_A_WHEEL


def test_a_plain_installation_requires_numpy_alone():
    required = [item for item in installed().requires or () if "extra ==" not in item]
    assert [re.match(r"[\w.-]+", item)[0] for item in required] == REQUIRED_PACKAGES
