"""Processes of the demo: what they say, how they end, and that none is left over."""

from __future__ import annotations

import sys
import time

import pytest

from eoslog.demo.child import Child, ChildFailed

pytestmark = pytest.mark.process

SPEAKER = """
import sys
from eoslog.demo.child import listen, say
print("chatter that is no event")
say("ready", row=7)
say("heard", order=listen())
sys.stderr.write("a word on the way out\\n")
sys.exit(4)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a child from source text."""
    children = []

    def start(name: str, source: str) -> Child:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        children.append(Child(name, name))
        return children[-1]

    yield start
    for child in children:
        child.close()


def until(child: Child, event: str) -> dict:
    deadline = time.monotonic() + 120
    while event not in child.said:
        assert time.monotonic() < deadline, child.errors()
        child.drain()
        time.sleep(0.01)
    return child.said[event]


def test_a_child_exchanges_lines_and_its_exit_status_is_checked(start):
    child = start("speaker", SPEAKER)
    assert until(child, "ready") == {"row": 7}
    child.tell("go on")
    child.expect(4, timeout=120)
    assert child.said["heard"] == {"order": "go on"}


def test_an_unexpected_exit_status_raises_with_stderr(start):
    child = start("speaker", SPEAKER)
    child.tell("go on")
    with pytest.raises(ChildFailed, match="exit status 4, not 0(.|\n)*a word on the way out"):
        child.expect(0, timeout=120)


def test_a_kill_sends_a_real_signal(start):
    child = start("speaker", SPEAKER)
    until(child, "ready")
    assert child.kill() == -9
    assert not child.running
    child.tell("nobody listens")


def test_a_closed_child_has_exited(start):
    child = start("sleeper", "import time; time.sleep(600)")
    child.close()
    assert not child.running


def test_children_import_the_modules_of_the_parent(start):
    child = start(
        "importer",
        "import sys, eoslog\nfrom eoslog.demo.child import say\n"
        "say('path', eoslog=eoslog.__file__, python=sys.executable)",
    )
    import eoslog

    assert until(child, "path") == {"eoslog": eoslog.__file__, "python": sys.executable}
