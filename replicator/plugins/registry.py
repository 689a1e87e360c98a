"""Finds the installed plugins, and reports why one cannot be used. The only module that drives pluggy."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast

import pluggy
from pydantic import BaseModel

from replicator.config import LoadedConfig, load, unknown_plugin
from replicator.model.errors import ConfigError
from replicator.observability import get_logger, redact
from replicator.plugins import hookspecs
from replicator.plugins.source import DeltaSource
from replicator.plugins.target import DeltaTarget

log = get_logger(__name__)

ENTRY_POINT_GROUP: Final = "replicator"

PluginKind = Literal["source", "target"]
PluginState = Literal["ok", "broken"]
Source = type[DeltaSource[Any]]
Target = type[DeltaTarget[Any]]
ClassT = TypeVar("ClassT", Source, Target)

# Enough for the cause; some drivers append pages of advice.
_REASON_LENGTH: Final = 500
_TYPE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_ENTRY_NAME = re.compile(r"(source|target)-(.+)")
_HOOKS: Final[Mapping[PluginKind, str]] = {
    "source": "replicator_register_sources",
    "target": "replicator_register_targets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin as `replicator plugins` lists it.

    `name` is the `type:` of the YAML; for a plugin that cannot be asked, the name of its entry point. `reason`: why it is broken.
    `kind` is None if a broken plugin's kind is unknown.
    """

    name: str
    kind: PluginKind | None
    distribution: str
    version: str
    state: PluginState = "ok"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Origin of a plugin."""

    entry: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found(Generic[ClassT]):
    """Usable classes of one kind, and the list of its plugins."""

    classes: Mapping[str, ClassT]
    infos: tuple[PluginInfo, ...]


class _Models(Mapping[str, type[BaseModel]]):
    """Settings models of the usable plugins of one kind, by name; looking one up imports no other plugin."""

    def __init__(self, lookup: Callable[[str], Source | Target | None], names: Callable[[], Iterable[str]]) -> None:
        self._lookup, self._names = lookup, names

    def __getitem__(self, name: str) -> type[BaseModel]:
        found = self._lookup(name)
        if found is None:
            raise KeyError(name)
        return found.config_model

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return sum(1 for _ in self._names())


class Registry:
    """The plugins of this installation.

    Classes are requested, and thereby imported, when they are needed: looking up one plugin imports no other, as long as its entry
    point is called by the convention, `source-NAME` or `target-NAME`. A plugin that fails never affects another.
    """

    def __init__(
        self, manager: pluggy.PluginManager, origins: Mapping[str, _Origin], broken: Sequence[PluginInfo]
    ) -> None:
        """Use `discover` or `of`."""
        self._manager = manager
        self._origins = origins
        self._unloaded = tuple(broken)

    @classmethod
    def discover(cls) -> Registry:
        """Load every installed entry point of the group `replicator`, one by one."""
        return cls.from_entry_points(entry_points(group=ENTRY_POINT_GROUP))

    @classmethod
    def from_entry_points(cls, points: Iterable[EntryPoint]) -> Registry:
        """Load these entry points. pluggy's own loader would end at the first that fails."""
        manager = _new_manager()
        origins: dict[str, _Origin] = {}
        broken: list[PluginInfo] = []
        for number, point in enumerate(sorted(points, key=lambda p: (p.name, p.value))):
            origin = _Origin(
                entry=point.name,
                distribution=point.dist.name if point.dist else "unknown",
                version=point.dist.version if point.dist else "unknown",
            )
            # Two distributions may call their entry points alike; pluggy wants every name once.
            name = f"{number}:{point.name}"
            reason = _admit(manager, name, point.load)
            if reason is None:
                origins[name] = origin
            else:
                broken.append(_broken(origin, None, reason))
        return cls(manager, origins, broken)

    @classmethod
    def of(cls, *, sources: Sequence[Source] = (), targets: Sequence[Target] = ()) -> Registry:
        """Make a registry of these classes, without looking at what is installed. They are checked like any others."""

        class InProcess:
            @hookspecs.hookimpl
            def replicator_register_sources(self) -> Sequence[Source]:
                return tuple(sources)

            @hookspecs.hookimpl
            def replicator_register_targets(self) -> Sequence[Target]:
                return tuple(targets)

        manager = _new_manager()
        origin = _Origin(entry="in-process", distribution="in-process", version="0")
        reason = _admit(manager, origin.entry, InProcess)
        assert reason is None, reason
        return cls(manager, {origin.entry: origin}, ())

    @property
    def plugins(self) -> Sequence[PluginInfo]:
        """Return every plugin, usable or not, by kind and name."""
        infos = (*self._sources.infos, *self._targets.infos, *self._unloaded)
        return sorted(infos, key=lambda info: (info.kind or "unknown", info.name, info.distribution))

    def source(self, name: str) -> Source:
        """Return the source plugin called `name`.

        Raises:
            ConfigError: `unknown_plugin`: there is none, or it is broken.
        """
        return self._class("source", name, self._source(name), lambda: self._sources)

    def target(self, name: str) -> Target:
        """Return the target plugin called `name`. Errors as `source`."""
        return self._class("target", name, self._target(name), lambda: self._targets)

    def source_models(self) -> Mapping[str, type[BaseModel]]:
        """Return the settings model of every usable source plugin, by name."""
        return _Models(self._source, lambda: self._sources.classes)

    def target_models(self) -> Mapping[str, type[BaseModel]]:
        """Return the settings model of every usable target plugin, by name."""
        return _Models(self._target, lambda: self._targets.classes)

    def load(
        self,
        source: Path | str,
        *,
        origin: str | None = None,
        env: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> LoadedConfig:
        """Read a configuration file (a Path) or text (a str) with the models of these plugins. Errors as `replicator.config.load`."""
        return load(
            source,
            sources=self.source_models(),
            targets=self.target_models(),
            origin=origin,
            broken=lambda kind, name: self._reasons().get((kind, name)),
            env=env,
            without=without,
        )

    @cached_property
    def _sources(self) -> _Found[Source]:
        return self._find("source", cast("Source", DeltaSource))

    @cached_property
    def _targets(self) -> _Found[Target]:
        return self._find("target", cast("Target", DeltaTarget))

    def _source(self, name: str) -> Source | None:
        found = self._promised("source", name, cast("Source", DeltaSource))
        return found or self._sources.classes.get(name)

    def _target(self, name: str) -> Target | None:
        found = self._promised("target", name, cast("Target", DeltaTarget))
        return found or self._targets.classes.get(name)

    def _promised(self, kind: PluginKind, name: str, base: ClassT) -> ClassT | None:
        """Return the class of the only entry point with that name; None where all plugins have to be asked."""
        hooks = [hook for hook in self._hooks(kind) if self._origins[hook.plugin_name].entry == f"{kind}-{name}"]
        if len(hooks) != 1:
            return None
        classes, _ = _ask(hooks[0].function, base)
        fitting = [c for c in classes if _fault(c, base) is None and _type_name(c) == name]
        return fitting[0] if len(fitting) == 1 else None

    def _class(
        self, kind: PluginKind, name: str, found: ClassT | None, all_found: Callable[[], _Found[ClassT]]
    ) -> ClassT:
        if found is not None:
            return found
        problem = unknown_plugin(kind, name, all_found().classes, self._reasons().get((kind, name)))
        raise ConfigError(problem.message, code=problem.code, action=problem.action, problems=(problem,))

    def _hooks(self, kind: PluginKind) -> Sequence[pluggy.HookImpl]:
        hooks: Sequence[pluggy.HookImpl] = getattr(self._manager.hook, _HOOKS[kind]).get_hookimpls()
        return hooks

    def _reasons(self) -> Mapping[tuple[str, str], str]:
        infos = (*self._sources.infos, *self._targets.infos, *self._unloaded)
        return {(info.kind, info.name): info.reason for info in infos if info.kind and info.reason}

    def _find(self, kind: PluginKind, base: ClassT) -> _Found[ClassT]:
        candidates: list[tuple[ClassT, _Origin]] = []
        infos: list[PluginInfo] = []
        for implementation in self._hooks(kind):
            origin = self._origins[implementation.plugin_name]
            classes, reason = _ask(implementation.function, base)
            if reason is not None:
                infos.append(_broken(origin, kind, reason))
                continue
            for candidate in classes:
                if fault := _fault(candidate, base):
                    infos.append(_broken(origin, kind, fault, name=_type_name(candidate)))
                else:
                    candidates.append((candidate, origin))
        accepted: dict[str, tuple[ClassT, _Origin]]
        clashes: list[PluginInfo]
        accepted, clashes = _by_owner(kind, candidates)
        infos += [_info(kind, name, origin) for name, (_, origin) in accepted.items()]
        return _Found(classes={name: c for name, (c, _) in sorted(accepted.items())}, infos=(*infos, *clashes))


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _admit(manager: pluggy.PluginManager, name: str, load_plugin: Callable[[], Any]) -> str | None:
    """Load and register one plugin; return why that is impossible."""
    try:
        plugin = load_plugin()
    except Exception as error:
        log.debug("plugin_not_loaded", plugin=name, exc_info=True)
        return f"cannot be imported: {_text(error)}"
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.get_plugin(name) is not None:
            manager.unregister(name=name)
        return f"has an invalid hook: {_text(error)}"
    if not manager.get_hookcallers(plugin):
        manager.unregister(name=name)
        return f"implements neither {' nor '.join(_HOOKS.values())}"
    return None


def _ask(hook: Callable[[], Any], base: type) -> tuple[Sequence[Any], str | None]:
    """Call a hook; return the classes, or why there are none."""
    try:
        classes = hook()
    except Exception as error:
        log.debug("plugin_hook_failed", exc_info=True)
        return (), f"cannot be imported: {_text(error)}"
    if not isinstance(classes, list | tuple):
        return (), f"its hook must return a list of {base.__name__} classes, and returned {type(classes).__name__}"
    return classes, None


def _fault(candidate: Any, base: type) -> str | None:
    """Say what keeps a class from being a plugin of this host."""
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        shown = candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
        return f"{shown} is not a subclass of {base.__name__}"
    name = getattr(candidate, "type_name", None)
    if not (isinstance(name, str) and _TYPE_NAME.fullmatch(name)):
        return f"{candidate.__name__}.type_name must be lower-case letters, digits, - and _"
    model = getattr(candidate, "config_model", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return f"{candidate.__name__}.config_model must be a pydantic model"
    if model.model_config.get("extra") != "forbid" or not model.model_config.get("frozen"):
        return f"{model.__name__} must be frozen and forbid extra keys (inherit replicator.plugins.ConfigModel)"
    if "type" in model.model_fields:
        return f"{model.__name__} must not have a field `type`: the host uses it"
    abstract: frozenset[str] = getattr(candidate, "__abstractmethods__", frozenset())
    if abstract:
        return f"{candidate.__name__} does not implement {', '.join(sorted(abstract))}"
    return None


def _by_owner(
    kind: PluginKind, candidates: Sequence[tuple[ClassT, _Origin]]
) -> tuple[dict[str, tuple[ClassT, _Origin]], list[PluginInfo]]:
    """Accept names with one owner. With two, neither: it is unknown which of them a configuration means."""
    owners: dict[str, dict[ClassT, _Origin]] = {}
    for candidate, origin in candidates:
        owners.setdefault(_type_name(candidate) or "", {})[candidate] = origin
    accepted: dict[str, tuple[ClassT, _Origin]] = {}
    clashes: list[PluginInfo] = []
    for name, classes in owners.items():
        if len(classes) == 1:
            accepted[name] = next(iter(classes.items()))
            continue
        who = " and ".join(f"{origin.distribution} ({c.__module__}.{c.__qualname__})" for c, origin in classes.items())
        reason = f"the name is claimed by {who}; uninstall one of them"
        clashes += [_broken(origin, kind, reason, name=name) for origin in classes.values()]
    return accepted, clashes


def _info(kind: PluginKind, name: str, origin: _Origin) -> PluginInfo:
    return PluginInfo(name=name, kind=kind, distribution=origin.distribution, version=origin.version)


def _broken(origin: _Origin, kind: PluginKind | None, reason: str, *, name: str | None = None) -> PluginInfo:
    # By convention entry points are called source-NAME or target-NAME, which tells the name and kind of a plugin that cannot be loaded.
    match = _ENTRY_NAME.fullmatch(origin.entry)
    told_kind: PluginKind | None = None if match is None else "source" if match[1] == "source" else "target"
    return PluginInfo(
        name=name or (match[2] if match else origin.entry),
        kind=kind or told_kind,
        distribution=origin.distribution,
        version=origin.version,
        state="broken",
        reason=reason,
    )


def _type_name(candidate: Any) -> str | None:
    name = getattr(candidate, "type_name", None)
    return name if isinstance(name, str) else None


def _text(error: Exception) -> str:
    words = " ".join(redact(str(error)).split())
    return f"{type(error).__name__}: {words[:_REASON_LENGTH]}" if words else type(error).__name__
