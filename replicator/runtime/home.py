"""Storage of a host's state: the home folder and the state store."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from replicator.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """`REPLICATOR_HOME` (default `~/.replicator`) and `REPLICATOR_STATE_URL` (default: SQLite in the home)."""

    folder: Path
    state_url: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """Read both variables."""
        environ = os.environ if environ is None else environ
        folder = Path(environ.get("REPLICATOR_HOME") or Path.home() / ".replicator").expanduser().absolute()
        return cls(folder=folder, state_url=environ.get("REPLICATOR_STATE_URL") or f"sqlite:///{folder / 'state.db'}")

    def ensure(self) -> None:
        """Create the folder, readable by its owner only.

        Raises:
            ConfigError: `home`: it cannot be made. `home_writable_by_all`: who writes there exchanges the state store, and so decides which
                programs run as this user (`alerts.commands`).
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.stat().st_mode & stat.S_IWOTH:
                raise ConfigError(
                    f"Every user of this machine may write into {self.folder}, and so change what runs as this user.",
                    code="home_writable_by_all",
                    action=f"chmod o-w {shlex.quote(str(self.folder))}. Where you may not, set REPLICATOR_HOME to a new folder in it.",
                )
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder {self.folder} cannot be created: {error.strerror}.",
                code="home",
                action="Set REPLICATOR_HOME to a folder that this user may write.",
            ) from error

    def beat(self) -> None:
        """Touch the file `alive`, whose time a probe reads, to note that the worker of this home is at work (docs/deploy/README.md)."""
        (self.folder / "alive").touch(mode=0o600)

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs."""
        return self.folder / "logs"

    def log_file(self, name: str) -> Path:
        """The log of one replicator, JSON lines."""
        return self.logs / f"{name}.jsonl"

    def journal_uri(self, name: str) -> str:
        """Return the location of a replicator's journal unless the YAML names another."""
        return str(self.folder / "journal" / name)

    def check_journal(self, name: str, stored: str) -> None:
        """Check that a journal stored as lying in the home lies in this one.

        A copied home has the state store of the original and names the original's journal, whose files it would remove.

        Raises:
            ConfigError: `home_copied`.
        """
        own = self.journal_uri(name)
        if stored != own and os.path.realpath(stored) != os.path.realpath(own):
            raise ConfigError(
                f"The journal of {name} is {stored}, outside REPLICATOR_HOME ({self.folder}): this home was copied or moved.",
                code="home_copied",
                action="Use the original home. If it was moved, move it back, or put a symbolic link to the new folder where it was.",
            )
