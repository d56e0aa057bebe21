"""Errors of shared libraries with functions. Their class names are the codes that users see."""

from __future__ import annotations


class LibraryProblem(Exception):
    """A shared library cannot be used; the class says why, the message says what to do."""


class LibraryNotFound(LibraryProblem):
    """There is no such file."""


class NotALibrary(LibraryProblem):
    """The file is not a shared library."""


class WrongArchitecture(LibraryProblem):
    """The library was built for another processor or operating system."""


class LibraryNotLoadable(LibraryProblem):
    """The system refuses to load the library, for example because another one that it needs is missing."""


class NoEntry(LibraryProblem):
    """The library does not have the symbol of Myrmidon's interface."""


class WrongAbiVersion(LibraryProblem):
    """The library was built with the header of another version."""


class NoFunction(LibraryProblem):
    """The library has no function of this name."""


class NativeFailure(Exception):
    """A function of a library has failed. ``type`` is the name of its error there, such as ``std::out_of_range``."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message)
        self.type = type_


class NativeTypeError(TypeError):
    """An input or an output does not have the type of the signature."""
