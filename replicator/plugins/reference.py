"""Writes `docs/configuration.md` for the installed plugins: `python -m replicator.plugins.reference docs/configuration.md`.

It is here and not next to the text's generator because `config` does not know where models come from.
"""

from __future__ import annotations

import sys
from pathlib import Path

from replicator.config import reference_markdown
from replicator.observability import configure_logging, get_logger
from replicator.plugins.registry import Registry

log = get_logger(__name__)


def installed_reference() -> str:
    """Return the configuration reference for the host and every plugin that is installed and works."""
    registry = Registry.discover()
    for plugin in registry.plugins:
        if plugin.state == "broken":
            log.warning("plugin_left_out", plugin=plugin.name, distribution=plugin.distribution, reason=plugin.reason)
    return reference_markdown(registry.source_models(), registry.target_models())


if __name__ == "__main__":
    configure_logging()
    text = installed_reference()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
