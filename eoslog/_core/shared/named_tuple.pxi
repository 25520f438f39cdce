# Named tuples of Python's classes, made without their slower constructors.
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":    # Cython declares it with another type, which GCC 14 rejects
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t size)


cdef named(object cls, tuple fields):
    """Return a tuple of class `cls` with these fields."""
    cdef Py_ssize_t i, count = len(fields)
    cdef tuple made = <tuple>PyType_GenericAlloc(<PyTypeObject*>cls, count)
    for i in range(count):
        field = fields[i]
        Py_INCREF(field)        # the next line takes the reference over
        PyTuple_SET_ITEM(made, i, field)
    return made
