"""The methods that a mapping inherits, with documentation of their own."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

__all__ = ["DocumentedMapping"]


class DocumentedMapping(Mapping[Any, Any]):
    """A mapping whose inherited methods appear in its reference."""

    def keys(self) -> KeysView[Any]:
        """Return a view of the keys."""
        return super().keys()

    def values(self) -> ValuesView[Any]:
        """Return a view of the values."""
        return super().values()

    def items(self) -> ItemsView[Any, Any]:
        """Return a view of the keys and values."""
        return super().items()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` for a missing key.

        Args:
            key: the key.
            default: what a missing key gives.
        """
        return super().get(key, default)
