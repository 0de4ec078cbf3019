"""The declaration of a step of the user's own: which columns and files it adds, and whether it takes batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

ATTRIBUTE = "__any2ds__"

Step = TypeVar("Step", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declaration:
    columns: Mapping[str, Any] = field(
        default_factory=dict
    )  # name -> Python type, name of an Arrow type, or Arrow type
    members: tuple[str, ...] = ()  # extensions of further files
    batch_size: int | None = None  # samples it is called with, at most; None: with one that is no list


@overload
def transform(step: Step) -> Step: ...


@overload
def transform(
    *, columns: Mapping[str, Any] | None = None, batch_size: int | None = None, members: Sequence[str] = ()
) -> Callable[[Step], Step]: ...


def transform(
    step: Callable[..., Any] | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    members: Sequence[str] = (),
) -> Any:
    """Declares a function, or a class whose instances are called, as a step for `download(transform=...)`.

    It takes a `Sample` and returns a `Sample`, None (which filters it) or a list of samples. One that changes nothing
    but the file needs no declaration.

    `columns` are those of the metadata that it fills with `sample.with_fields`: name -> str, int, float, bool, bytes,
    a list of one of these (`list[float]`), the name of an Arrow type such as "int32", or an Arrow type. `members` are
    the extensions that it gives to `sample.with_member`. With `batch_size` it is called with a list of up to so many
    samples, and returns a list with what becomes of each, in the same order.

    Raises TypeError or ValueError for what cannot be declared.
    """
    if isinstance(members, str):
        raise TypeError(f"members={members!r}: it takes several extensions: members=({members!r},)")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r}: it takes a whole number of at least 1")
    declaration = Declaration(dict(columns or {}), tuple(ext.removeprefix(".") for ext in members), batch_size)

    def declared(step: Step) -> Step:
        setattr(step, ATTRIBUTE, declaration)
        return step

    return declared if step is None else declared(step)


def declaration_of(step: Any) -> Declaration:
    """The declaration of `step`; an empty one, unless `transform` was put before it."""
    found = getattr(step, ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()
