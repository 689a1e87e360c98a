"""Secrets that can be looked for: in texts, files, databases, and in the arguments of programs that were started."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

_RECORDING: Final = """
import json, os, sys

def note(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn"):
        line = (json.dumps([repr(a) for a in arguments[:2]]) + "\\n").encode()
        file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)

sys.addaudithook(note)
"""


class Canaries:
    """Secrets by the variable of the environment that has each; what is looked for is a part that no spelling changes."""

    def __init__(self, *names: str) -> None:
        self._cores = {name: f"Cnry{number}q7d1e93ab55c0" for number, name in enumerate(names, start=1)}

    def core(self, name: str) -> str:
        """The part of a secret that is looked for."""
        return self._cores[name]

    def password(self, name: str) -> str:
        """A secret that addresses, JSON and `repr` spell in ways of their own."""
        return f"p/s'w \"é@{self._cores[name]}"

    def found(self, data: bytes | str) -> set[str]:
        """Names of the secrets that are in the data: as text, in UTF-16, Base64 or hexadecimal."""
        data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
        return {name for name, core in self._cores.items() if any(spelling in data for spelling in _spellings(core))}

    def found_in(self, *folders: Path) -> set[tuple[str, str]]:
        """Files that have one, or whose name has, with its name; Parquet is read as a reader does."""
        return {
            (file.name, name)
            for folder in folders
            for file in folder.rglob("*")
            for name in self.found("\n".join((file.name, *_columns(file)))) | self.found(_content(file))
        }


def record_programs(folder: Path) -> tuple[Mapping[str, str], Path]:
    """The environment with which every Python process notes the programs that it starts, and the file of the notes."""
    folder.mkdir()
    file = folder / "programs.jsonl"
    (folder / "sitecustomize.py").write_text(_RECORDING.format(file=str(file)), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}, file


def programs(file: Path) -> Iterable[str]:
    """Each program that was started, with its arguments, as Python writes them."""
    return [" ".join(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _spellings(core: str) -> Iterator[bytes]:
    plain = core.encode()
    yield from (
        plain,
        core.encode("utf-16-le"),
        core.encode("utf-16-be"),
        plain.hex().encode(),
        plain.hex().upper().encode(),
    )
    # Of the first and last group of three bytes something else may be part.
    yield from (base64.b64encode(b"x" * before + plain)[4:-4] for before in range(3))


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _columns(file: Path) -> Iterator[str]:
    if file.suffix == ".parquet" and file.is_file():
        table = pq.read_table(file)
        yield str(table.schema.to_string(show_field_metadata=True, truncate_metadata=False))
        yield str(table.to_pylist())
