"""Imports go down only, file by file and without circles, as ARCHITECTURE.md draws it."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "any2ds"
LAYERS = (
    "core < config < storage < readers fetch transforms writers distributors < dataset worker < load < describe"
    " < run beam < estimate recipes < cli < __main__"
)
LAYER_OF = {room: floor for floor, rooms in enumerate(LAYERS.split(" < ")) for room in rooms.split()}
MOST_FLOORS = 17  # between cli and core; pictures of the report are read through `load`
MOST_ENTRIES = 22  # at the top


def name_of(path: Path) -> str:
    """`any2ds.core.errors`; a package is its `__init__.py`."""
    return ".".join(("any2ds", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.parts}
MODULES = [name for name in FILES if name != "any2ds"]


def room(module: str) -> str:
    return module.split(".")[1]


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only a type checker sees."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


@cache
def imported(module: str) -> frozenset[str]:
    """The files of any2ds that a module imports when it is loaded, or later inside a function."""
    found = set()
    for node in ast.walk(WithoutTypes().visit(ast.parse(FILES[module].read_text(encoding="utf-8")))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "any2ds":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in FILES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("any2ds.")}
    packages = {name.rsplit(".", depth)[0] for name in found for depth in range(1, name.count("."))}  # run as well
    return frozenset((found | packages) - {module})


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    for other in imported(module):
        assert other == "any2ds" or room(other) == room(module) or LAYER_OF[room(other)] < LAYER_OF[room(module)], other


def test_there_are_no_circles_and_few_floors() -> None:
    floors = {"any2ds": 0}
    for module in TopologicalSorter({name: imported(name) for name in MODULES}).static_order():  # raises CycleError
        if module != "any2ds":
            above = 0 if room(module) in ("core", "cli", "__main__") else 1
            floors[module] = above + max((floors[other] for other in imported(module)), default=0)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda found: -found[1])[:20]


def test_the_top_is_small_and_every_room_has_its_layer() -> None:
    entries = {path.name.removesuffix(".py").removesuffix(".pyi") for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert len(entries) <= MOST_ENTRIES
    assert entries - {"__init__", "testing", "py.typed"} == set(LAYER_OF)


@pytest.mark.parametrize("module", list(FILES))
def test_every_module_opens_with_what_it_owns(module: str) -> None:
    source = FILES[module].read_text(encoding="utf-8")
    assert not source.strip() or ast.get_docstring(ast.parse(source))


def test_no_arrow_value_becomes_one_of_numpy_or_pandas() -> None:
    """pyarrow may have been loaded without them, see core/plain_arrow.py, and crashes then."""
    for module, path in FILES.items():
        named = {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
        assert not {"to_numpy", "to_pandas"} & named, module
