# Makes the folder a Cython package, so that chapters can cimport the leaf headers.
