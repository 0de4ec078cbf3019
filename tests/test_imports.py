"""Imports go one way, as ARCHITECTURE.md draws it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "any2ds"
LAYERS = [
    {"version", "errors", "types", "stored", "vitals", "histogram"},
    {
        "parsers",
        "needs",
        "mediaoptions",
        "watchoptions",
        "config",
        "codes",
        "again",
        "childprocess",
        "children",
        "quieting",
        "heap",
        "widecolumns",
        "declaration",
        "signature",
        "registry",
        "recipes",
        "cookies",
        "cores",
        "protocols",
        "layout",
        "manifest",
    }
    | {
        "storage",
        "lock",
        "lockfile",
        "membership",
        "buffer",
        "metadata",
        "badrows",
        "tables",
        "media",
        "shardlist",
        "watchdog",
        "footprint",
    },
    {"readers", "fetch", "transforms", "writers", "distributors", "reporters"},
    {"sources", "shuffle", "plan", "dedupe", "resume", "failed", "claims"}
    | {
        "jobrows",
        "workshop",
        "shard",
        "remake",
        "rows",
        "describe",
        "expectations",
        "openshards",
        "crew",
        "transforming",
        "isolation",
        "pulse",
        "steps",
        "worker",
    }
    | {
        "account",
        "stopping",
        "run",
        "monitor",
        "diagnosis",
        "reporting",
        "dataset",
        "loaders",
        "hub",
        "records",
        "catalogue",
        "completion",
        "tfds",
        "survey",
        "painting",
        "thumbnails",
        "timeline",
        "figures",
    },
    {"api", "verification", "overview", "datasetcard", "reportpage", "samples", "beam"},
    {"cli"},
]
PARTS = LAYERS[2]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "testing" not in path.parts)


def layer(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only a type checker sees."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imported(path: Path) -> set[str]:
    """The parts of any2ds that a module imports when it is loaded, or later inside a function."""
    found = set()
    for node in ast.walk(WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "any2ds":
            names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            found |= set(names)
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("any2ds.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    for name in imported(path) - {own}:
        assert layer(name) <= layer(own)
        assert not (own in PARTS and name in PARTS)


def test_every_module_has_its_layer_and_opens_with_what_it_owns() -> None:
    assert len(MODULES) > 30
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        assert not source.strip() or ast.get_docstring(ast.parse(source)), path
