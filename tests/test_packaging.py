"""The package, its lock file and its house rules are what they claim to be."""

from __future__ import annotations

import ast
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import roundelay

REPO = Path(__file__).resolve().parents[1]
SRC = REPO / "src" / "roundelay"
CORE_FILES = sorted((SRC / "core").rglob("*.py"))
PYPROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (REPO / "requirements.lock").read_text(encoding="utf-8")
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])


def run(*command: object, cwd: Path = REPO, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command, unmeasured: what it does to a copy is no coverage of ours."""
    inherited = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def plain_name(requirement: str) -> str:
    """`Coverage[toml]>=7` → `coverage`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


# ------------------------------------------------------------------------------- the package


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert version("roundelay") == roundelay.__version__


def test_the_command_can_be_loaded() -> None:
    (command,) = entry_points(group="console_scripts", name="roundelay")
    assert callable(command.load())


def test_the_command_works_without_the_extras() -> None:
    """A base install has what `dependencies` lists, and nothing else."""
    script = """if True:
        import sys
        for absent in ("pyarrow", "simpy", "uvloop", "hypothesis", "pytest", "coverage"):
            sys.modules[absent] = None
        from roundelay.cli.main import main
        sys.argv = ["roundelay", "--help"]
        main()
    """
    done = run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


def test_the_wheel_holds_the_types_and_the_licence_and_asks_for_little(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    info = f"roundelay-{roundelay.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert {"roundelay/py.typed", f"{info}/licenses/LICENSE"} <= names
    ours = ("roundelay/", "pyspark_roundelay/", info)  # the second: how Spark finds our source
    assert all(name.startswith(ours) for name in names)
    required = metadata.get_all("Requires-Dist", [])
    base = {plain_name(line) for line in required if "extra ==" not in line}
    assert base == {"msgspec", "click", "rich", "cryptography", "crc32c"}


# ------------------------------------------------------------------------------- the lock file


def locked() -> dict[str, str]:
    """Name of each locked package, with all that the file says of it."""
    entries = re.split(r"^(?=\w)", LOCK, flags=re.MULTILINE)
    return {plain_name(entry): entry for entry in entries if re.match(r"\w", entry)}


@pytest.mark.parametrize("name", sorted(locked()))
def test_each_locked_package_has_one_version_and_its_hashes(name: str) -> None:
    first, *rest = locked()[name].rstrip().splitlines()
    assert re.fullmatch(r"[\w.-]+==[\w.]+( ; [^\\]+)? \\", first)
    assert rest
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in rest)


def test_all_that_the_project_asks_for_is_locked() -> None:
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    assert {plain_name(requirement) for requirement in wanted} <= locked().keys()


def test_the_lock_file_names_no_place_to_download_from() -> None:
    assert "://" not in LOCK
    assert not re.search(r"--(index|extra-index|find-links|trusted)", LOCK)


# ------------------------------------------------------------------------------- layering


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    return run(script, "--no-cache", "--no-logo", cwd=tree, PYTHONPATH=str(tree / "src"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the source, with all rooms, that a test may spoil."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SRC, tmp_path / "src" / "roundelay", ignore=ignore)
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    runs = tmp_path / "src" / "roundelay" / "runs"
    runs.mkdir(exist_ok=True)
    (runs / "__init__.py").touch()
    return tmp_path


def test_the_layering_rule_holds() -> None:
    done = lint_imports(REPO)
    assert done.returncode == 0, done.stdout
    assert "4 kept, 0 broken" in done.stdout


LAYERS = "A room imports the rooms below it only"
FILES_ONLY = "The pipeline reads files and recorders, not the inside of a node"
LIVE = "Nothing that runs live needs the simulator"
PURE = "The core does no I/O and reads no clock"


@pytest.mark.parametrize(
    "room, line, contract",
    [
        *(("core", f"import roundelay.{above}", LAYERS) for above in ("wire", "sim", "trace")),
        ("core", "import roundelay.journal", LAYERS),
        ("journal", "import roundelay.node", LAYERS),
        ("node", "import roundelay.client", LAYERS),
        ("client", "import roundelay.runs", LAYERS),
        *(("core", f"from roundelay import {above}", LAYERS) for above in ("runs", "cli")),
        ("core/token", "from roundelay.wire import planted", LAYERS),
        ("wire", "import roundelay.sim", LAYERS),
        ("wire", "import roundelay.trace", LAYERS),
        ("sim", "import roundelay.wire", LAYERS),
        ("sim", "import roundelay.trace", LAYERS),
        ("sim", "import roundelay.runs", LAYERS),
        ("trace", "import roundelay.sim", LAYERS),
        ("trace", "import roundelay.cli", LAYERS),
        ("runs", "import roundelay.cli", LAYERS),
        ("runs", "import roundelay.pipeline", LAYERS),
        ("pipeline", "import roundelay.cli", LAYERS),
        ("pipeline", "from roundelay.node.storage.folders import journal_folder", FILES_ONLY),
        ("node", "import roundelay.sim", LIVE),
        ("client", "from roundelay.sim.network import links", LIVE),
        ("client", "import roundelay.faultnet", LAYERS),
        ("unplanned", "import roundelay.core", LAYERS),
        ("core", "import time", PURE),
        ("core", "from os import urandom", PURE),
        ("core", "import asyncio.events", PURE),
        ("core/token", "import logging", PURE),
        ("core", "from pathlib import Path", PURE),
        ("core", "def late():\n    import socket", PURE),
        ("core", "import pyarrow", PURE),
    ],
)
def test_an_import_that_breaks_the_layering_is_noticed(
    copy: Path, room: str, line: str, contract: str
) -> None:
    folder = copy / "src" / "roundelay" / room
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "planted.py").write_text(line + "\n")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


# What import-linter cannot say: a part of a module, and builtins.


def impurities(source: str) -> list[str]:
    """Uses of global randomness and of builtins that do I/O.

    >>> impurities("from random import Random, shuffle\\nimport random as r\\nprint(open('x'))")
    ['from random import shuffle', 'import random', 'print', 'open']
    >>> impurities("from random import Random\\nrng.random()")
    []
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += ["import random" for alias in names if alias.name == "random"]
            case ast.ImportFrom(module="random", names=names):
                others = [alias.name for alias in names if alias.name != "Random"]
                found += [f"from random import {name}" for name in others]
            case ast.Name(id="open" | "print" | "input" | "exec" | "eval" | "__import__" as name):
                found.append(name)
    return found


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_the_core_has_no_randomness_of_its_own_and_no_io(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_no_module_of_the_core_is_over_600_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


# ------------------------------------------------------------------------------- the tools


def core_coverage(report: Path, **files: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    """Run the gate on a report of (branches, branches taken) per file, `__` for `/`."""
    entries = {
        f"src/roundelay/{name.replace('__', '/')}.py": {
            "summary": {"num_branches": branches, "covered_branches": covered}
        }
        for name, (branches, covered) in files.items()
    }
    report.write_text(json.dumps({"files": entries}))
    return run(sys.executable, REPO / "tools" / "core_coverage.py", report)


def test_the_coverage_gate_counts_the_branches_of_the_core_alone(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    files = {"core__engine": (60, 60), "core__token__site": (40, 35), "sim__world": (900, 0)}
    passed = core_coverage(report, **files)
    assert passed.returncode == 0, passed.stderr
    assert "core: 95 of 100 branches taken, 95.00 %" in passed.stdout
    assert "core/token/site.py: 5 of 40 branches not taken" in passed.stdout

    failed = core_coverage(report, core__engine=(60, 60), core__token__site=(40, 34))
    assert failed.returncode == 1
    assert "94.00 %" in failed.stdout


def test_the_coverage_gate_fails_when_nothing_was_measured(tmp_path: Path) -> None:
    done = core_coverage(tmp_path / "coverage.json", sim__world=(10, 10))
    assert done.returncode == 1
    assert "no branches of the core" in done.stderr


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


@needs_make
def test_make_alone_lists_the_targets() -> None:
    done = run("make", "--no-print-directory", MAKEFLAGS="")
    assert done.returncode == 0, done.stderr
    for target in ("setup", "check", "test", "demo", "swarm", "explore", "bench", "format"):
        assert f"make {target} " in done.stdout


@needs_make
def test_setup_says_so_when_python_is_too_old(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(REPO / name, tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    make = shutil.which("make")
    done = run(make, "setup", cwd=tmp_path, PATH=str(programs), MAKEFLAGS="", PYTHON="")
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


# ------------------------------------------------------------------------------- the pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing
