"""Spark tests run on the installed wheel, or on the source tree by way of PYTHONPATH=spark."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _make_importable() -> None:
    """Spark's planner and executors are processes of their own: they need the path in the environment."""
    wanted = []
    for name, folder in (("eoslog", ROOT), ("pyspark_eoslog", ROOT / "spark")):
        spec = importlib.util.find_spec(name)
        if spec is None or str(spec.origin).startswith(str(ROOT)):
            wanted.append(str(folder))
    for folder in wanted:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    before = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(wanted + before))


_make_importable()
