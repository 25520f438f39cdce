# Makes this directory a Cython package, so that the included files can cimport its .pxd files.
