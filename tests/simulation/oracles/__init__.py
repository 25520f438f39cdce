"""The oracles: the model, the promises, and the checks of a directory."""
