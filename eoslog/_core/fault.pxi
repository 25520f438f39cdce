# The one place that turns a C status into a Python exception.
