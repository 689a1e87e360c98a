"""Scala's values through py4j, for the few calls of Delta that have no public form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any


class Scala:
    """Makes and reads Scala's collections in a session's JVM."""

    def __init__(self, session: Any) -> None:
        self.jvm = session._jvm  # noqa: SLF001 - the JVM has no public name
        self.delta = self.jvm.org.apache.spark.sql.delta
        # Each part of such a name is a question to the JVM.
        set_active = self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession
        self._activate = partial(set_active, session._jsparkSession)  # noqa: SLF001
        self.activate()

    def activate(self) -> None:
        """Make the session the active one of this thread.

        Delta asks for it where a checkpoint was not fetched ahead in time; before its first statement a thread has none.
        """
        self._activate()

    def object(self, package: Any, name: str) -> Any:
        """A Scala `object`."""
        return getattr(getattr(package, f"{name}$"), "MODULE$")

    def action(self, action: Mapping[str, Any]) -> Any:
        """An action of Delta's log, from its JSON."""
        return self.object(self.delta.actions, "Action").fromJson(json.dumps(action))

    def none(self) -> Any:
        """The object `None`."""
        return self.jvm.scala.Option.empty()

    def some(self, value: Any) -> Any:
        """`Some(value)`."""
        return self.jvm.scala.Option.apply(value)

    def seq(self, items: Sequence[Any]) -> Any:
        """An immutable `Seq`."""
        array = self.jvm.java.util.ArrayList()
        for item in items:
            array.add(item)
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asScala(array).toSeq()

    def list(self, seq: Any) -> list[Any]:
        """The items of a `Seq`."""
        return list(self.jvm.scala.jdk.javaapi.CollectionConverters.asJava(seq))

    def map(self, scala_map: Any) -> dict[str, Any]:
        """The pairs of a `Map`."""
        return dict(self.jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))

    def immutable_map(self, pairs: dict[str, str]) -> Any:
        """An immutable `Map`."""
        java_map = self.jvm.java.util.HashMap()
        for name, value in pairs.items():
            java_map.put(name, value)
        as_scala = self.jvm.scala.jdk.javaapi.CollectionConverters.asScala(java_map)
        return getattr(self.jvm.scala.collection.immutable.HashMap, "from")(as_scala)
