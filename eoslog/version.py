"""The version, in a module that can be imported without the compiled core."""

__version__ = "0.1.0"
