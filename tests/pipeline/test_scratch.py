"""Files in the temporary folder, which everybody can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roundelay.core.errors import ConfigError
from roundelay.pipeline.sink import parse
from roundelay.pipeline.spark.interpreters import placed
from roundelay.pipeline.spark.scratch import private_folder, private_temporary_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def stage() -> Path:
    options = {"node": "127.0.0.1:6678", "group": "token:orders"}
    return Path(parse(options, streaming=False).stage)


def test_rows_are_staged_where_nobody_else_can_read_them(temporary: Path) -> None:
    folder = temporary / f"roundelay-{os.getuid()}"
    assert stage() == folder / "stage"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_temporary_folder() == folder  # the same every time


def test_a_link_that_somebody_laid_there_is_not_followed(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    (temporary / f"roundelay-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(ConfigError, match="somebody made this one"):
        stage()


def test_a_folder_that_others_can_enter_is_not_used(temporary: Path) -> None:
    made = temporary / "open"
    made.mkdir()
    made.chmod(0o777)
    with pytest.raises(ConfigError, match="others cannot enter"):
        private_folder(made)


def test_a_script_that_somebody_changed_is_written_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary / "no" / "such"))
    (temporary / "no").write_text("a file, so nothing can be made below it")
    script = "#!/bin/sh\nexec java\n"
    file = placed("shim-{}/bin/java", script)
    assert file is not None
    assert file.is_relative_to(private_temporary_folder())
    file.chmod(0o700)
    file.write_text("#!/bin/sh\necho owned\n")
    assert placed("shim-{}/bin/java", script) == file
    assert file.read_text() == script
    target = temporary / "target"
    target.write_text(script)
    file.unlink()
    file.symlink_to(target)
    assert placed("shim-{}/bin/java", script) == file
    assert not file.is_symlink()
