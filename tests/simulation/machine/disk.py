"""A disk that can lose power: the durable image, and what a crash may leave.

The live files are in a real directory on tmpfs, so that mappings, locks and listings are the
kernel's own. This model is notified of every call that changes them. It keeps the durable
image:

    a file's bytes    as of its last fsync or fdatasync (both also cover what was stored through a mapping), and
                      single 4 KiB pages that the kernel wrote back without a sync (`writeback`)
    a file's size     with its bytes
    a directory       as of its last fsync; the changes since are kept in order

A power loss chooses at random. A page that differs from the durable image is old, new, or torn
at 512 B sectors. A file's size is old, new, or a page's end between them; bytes below the size
that were never written are zeros. A directory keeps none, all, a beginning, or any subset of
its unsynced changes, and a rename is one change. A file that is not reachable any more is lost.
This is not kinder than ext4 and XFS (regressions.md F1 to F6). In two points it is harsher:
metadata changes are not ordered, and fsync of a file does not make its name durable.

A failed fsync is reported once (F12): the pages count as clean, and the next fsync succeeds
without them. Only another write makes them dirty again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

PAGE = 4096
SECTOR = 512
_ZEROS = bytes(16 * PAGE)

Image = dict[str, bytes | None]
"""What lies on a disk: path below its root -> content, None for a directory."""


@dataclass(eq=False)
class File:
    """One inode. `live` is the path of its volatile bytes, or the bytes themselves.

    It holds the bytes if the inode no longer has a name.
    """

    live: str | bytes
    durable: bytes = b""
    lost: set[int] = field(default_factory=set)  # pages that a failed fsync has marked clean

    def bytes(self) -> bytes:
        if isinstance(self.live, bytes):
            return self.live
        with open(self.live, "rb", buffering=0) as file:
            return file.read()

    def sync(self) -> None:
        """Make the bytes durable, except pages that a failed fsync has made clean."""
        now = self.bytes()
        if not self.lost:
            self.durable = now
            return
        kept = bytearray(now)
        for page in self.lost:
            at = page * PAGE
            kept[at : at + PAGE] = self.durable[at : at + PAGE].ljust(
                len(kept[at : at + PAGE]), b"\0"
            )
        self.durable = bytes(kept)

    def fail_sync(self) -> None:
        """A writeback error: dirty pages are clean now, and not on the disk."""
        self.lost.update(self.dirty_pages(self.bytes()))

    def rewritten(self, at: int, size: int) -> None:
        """A write makes its pages dirty (again)."""
        if self.lost:
            self.lost.difference_update(range(at // PAGE, (at + max(size, 1) - 1) // PAGE + 1))

    def forget(self) -> None:
        """Drop the pages of a failed fsync from the cache: the disk's bytes come back."""
        now = self.bytes()
        assert isinstance(self.live, str)
        with open(self.live, "r+b", buffering=0) as file:
            for at in (page * PAGE for page in sorted(self.lost)):
                size = len(now[at : at + PAGE])
                file.seek(at)
                file.write(self.durable[at : at + size].ljust(size, b"\0"))
        self.lost.clear()

    def dirty_pages(self, now: bytes) -> list[int]:
        if now == self.durable:
            return []
        old = self.durable
        pages = range((max(len(now), len(old)) + PAGE - 1) // PAGE)
        return [
            p for p in pages if now[p * PAGE : (p + 1) * PAGE] != old[p * PAGE : (p + 1) * PAGE]
        ]

    def writeback(self, rng: Random) -> None:
        """Let the kernel write one dirty page; the size follows if the page is beyond it."""
        now = self.bytes()
        dirty = [p for p in self.dirty_pages(now) if p not in self.lost and p * PAGE < len(now)]
        if not dirty:
            return
        at = rng.choice(dirty) * PAGE
        part = now[at : at + PAGE]
        kept = bytearray(self.durable.ljust(at, b"\0"))
        kept[at : at + PAGE] = part + kept[at + len(part) : at + PAGE]
        self.durable = bytes(kept)

    def draw(self, rng: Random, now: bytes) -> bytes:
        """What a power cut leaves of it, which has these bytes now."""
        old = self.durable
        if now == old:
            return old
        mode = rng.randrange(8)
        if mode == 0:
            return old
        if mode == 1 and not self.lost:
            return now
        size = self._draw_size(rng, len(old), len(now))
        out = bytearray(old[:size].ljust(size, b"\0"))
        dirty = self.dirty_pages(now)
        stop = rng.randrange(len(dirty) + 1)
        for i, page in enumerate(dirty):
            if page in self.lost:
                continue
            keep = i < stop if mode < 4 else rng.random() < 0.5
            at = page * PAGE
            if i == stop and mode < 4 or rng.random() < 0.15:
                for sector in range(at, at + PAGE, SECTOR):
                    if rng.random() < 0.5:
                        self._put(out, now, sector, SECTOR)
            elif keep:
                self._put(out, now, at, PAGE)
        return bytes(out)

    @staticmethod
    def _put(out: bytearray, now: bytes, at: int, size: int) -> None:
        part = now[at : min(at + size, len(out))]
        out[at : at + len(part)] = part

    @staticmethod
    def _draw_size(rng: Random, old: int, new: int) -> int:
        low, high = sorted((old, new))
        ends = [low, high, *range((low // PAGE + 1) * PAGE, high, PAGE)]
        return new if rng.random() < 0.5 else rng.choice(ends)


@dataclass(eq=False)
class Folder:
    """One directory: its names now, its durable names, and the changes in between."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changes: list[tuple[str, str, Node | None]] = field(
        default_factory=list
    )  # (name, renamed from, node or gone)

    def change(self, name: str, node: Node | None, source: str = "") -> None:
        self.changes.append((name, source, node))
        _apply(self.names, name, node, source)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def draw(self, rng: Random) -> dict[str, Node]:
        mode = rng.randrange(4) if self.changes else 0
        if mode == 0:
            return dict(self.durable)
        if mode == 1:
            return dict(self.names)
        kept = self.changes[: rng.randrange(len(self.changes) + 1)] if mode == 2 else [
            change for change in self.changes if rng.random() < 0.5
        ]  # fmt: skip
        names = dict(self.durable)
        for name, source, node in kept:
            _apply(names, name, node, source)
        return names


Node = File | Folder


def _apply(names: dict[str, Node], name: str, node: Node | None, source: str) -> None:
    if source and names.get(source) is node:
        del names[source]
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Disk:
    """The files below one root, live and durable.

    Args:
        root: an empty directory on tmpfs; `image` is written into it, all of it durable.
    """

    def __init__(self, root: str, image: Image) -> None:
        """Lay the image out."""
        self.root = root
        self.top = Folder()
        self.syncs = 0
        os.makedirs(root)
        for path in sorted(image):
            content = image[path]
            folder, name = self._place(os.path.join(root, path))
            full = os.path.join(root, path)
            node: Node
            if content is None:
                os.mkdir(full, 0o700)
                node = Folder()
            else:
                write_sparse(full, content)
                node = File(full, content)
            folder.names[name] = folder.durable[name] = node

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self.top
        *parts, name = path[len(self.root) + 1 :].split("/")
        for part in parts:
            found = folder.names[part]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def node(self, path: str) -> Node:
        """The file or directory at a path now."""
        if path.rstrip("/") == self.root:
            return self.top
        folder, name = self._place(path)
        return folder.names[name]

    # -- what happened (told after the call succeeded; `leaving` before it) -----------------------

    def opened(self, path: str) -> Node:
        """A descriptor of this node was made; creates the file."""
        if path.rstrip("/") == self.root:
            return self.top
        folder, name = self._place(path)
        if name not in folder.names:
            folder.change(name, File(path))
        return folder.names[name]

    def leaving(self, path: str) -> None:
        """Keep the bytes of a file that loses its name; the durable image may name it."""
        folder, name = self._place(path)
        node = folder.names.get(name)
        if isinstance(node, File):
            node.live = node.bytes()

    def made_folder(self, path: str) -> None:
        folder, name = self._place(path)
        folder.change(name, Folder())

    def removed(self, path: str) -> None:
        folder, name = self._place(path)
        folder.change(name, None)

    def renamed(self, source: str, target: str) -> None:
        folder, old = self._place(source)
        other, new = self._place(target)
        assert folder is other, f"rename across directories: {source} to {target}"
        node = folder.names[old]
        folder.change(new, node, old)
        self._moved(node, target)

    def _moved(self, node: Node, path: str) -> None:
        if isinstance(node, File):
            node.live = path
        else:
            for name, below in node.names.items():
                self._moved(below, os.path.join(path, name))

    # -- what may be left -------------------------------------------------------------------------

    def files(self) -> list[File]:
        """Every file that has a name now, in a fixed order."""
        found: list[File] = []
        folders = [self.top]
        while folders:
            folder = folders.pop()
            for name in sorted(folder.names):
                node = folder.names[name]
                if isinstance(node, File):
                    found.append(node)
                else:
                    folders.append(node)
        return found

    def power_cut(self, rng: Random) -> Image:
        """Draw one of the states in which a power cut may leave the disk."""
        return self.power_cuts(rng, 1)[0]

    def power_cuts(self, rng: Random, count: int) -> list[Image]:
        """Draw several of them; what the files hold now is read once."""
        now: dict[File, bytes] = {}
        return [self._draw(rng, now) for _ in range(count)]

    def _draw(self, rng: Random, now: dict[File, bytes]) -> Image:
        drawn: dict[File, bytes] = {}
        image: Image = {}

        def lay(folder: Folder, path: str) -> None:
            names = folder.draw(rng)
            for name in sorted(names):
                node = names[name]
                below = os.path.join(path, name)
                if isinstance(node, Folder):
                    image[below] = None
                    lay(node, below)
                else:
                    if node not in now:
                        now[node] = node.bytes()
                    if node not in drawn:
                        drawn[node] = node.draw(rng, now[node])
                    image[below] = drawn[node]

        lay(self.top, "")
        return image

    def synced(self, losing: str = "") -> Image:
        """The worst power cut: only what was synced is left.

        With `losing`, the worst for those files alone: everything else reached the disk by chance.
        """
        if losing:
            image = self.as_is()
            names = {node.live: node.durable for node in self.files() if isinstance(node.live, str)}
            for path in image:
                if path.endswith(losing):
                    image[path] = names[os.path.join(self.root, path)]
            return image
        return self._image(lambda folder: folder.durable, lambda file: file.durable)

    def reordered(self) -> Image:
        """The bytes unchanged; of each directory's unsynced changes only the last one."""

        def names_of(folder: Folder) -> dict[str, Node]:
            names = dict(folder.durable)
            for name, source, node in folder.changes[-1:]:
                _apply(names, name, node, source)
            return names

        return self._image(names_of, File.bytes)

    def hollow(self) -> Image:
        """All names and lengths reached the disk; bytes only where they were synced."""
        kept = {node.live: node.durable for node in self.files() if isinstance(node.live, str)}
        image = self.as_is()
        for path, content in image.items():
            if content is not None:
                durable = kept[os.path.join(self.root, path)]
                image[path] = durable[: len(content)].ljust(len(content), b"\0")
        return image

    def as_is(self) -> Image:
        """The live files: what a kill of every process leaves."""
        return self._image(lambda folder: folder.names, File.bytes)

    def _image(
        self, names_of: Callable[[Folder], dict[str, Node]], bytes_of: Callable[[File], bytes]
    ) -> Image:
        """Every directory with the names given for it, every file with its bytes."""
        image: Image = {}

        def lay(folder: Folder, path: str) -> None:
            for name, node in names_of(folder).items():
                below = os.path.join(path, name)
                if isinstance(node, Folder):
                    image[below] = None
                    lay(node, below)
                else:
                    image[below] = bytes_of(node)

        lay(self.top, "")
        return image


def write_sparse(path: str, content: bytes) -> None:
    """Write a file without its zero pages; most of the 1 MiB control file is zeros."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
    try:
        if len(content) <= 16 * PAGE:
            os.write(fd, content)
            return
        os.ftruncate(fd, len(content))
        for at in range(0, len(content), 16 * PAGE):
            part = content[at : at + 16 * PAGE]
            if part != _ZEROS[: len(part)]:
                os.pwrite(fd, part, at)
    finally:
        os.close(fd)
