"""What is said of `spark.master` before Spark starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from replicator.spark.master import java_problem, local_threads, reach_problem, setting_problem, sharing_problems


@pytest.mark.parametrize(
    ("master", "threads"),
    [("local", 1), ("local[3]", 3), ("local[*]", 6), ("local[2, 3]", 2), ("spark://a:7077", None), ("yarn", None)],
)
def test_threads_of_a_master(master: str, threads: int | None) -> None:
    assert local_threads(master, 6) == threads
    assert setting_problem(master) is None


@pytest.mark.parametrize(
    "master",
    ["spark://a", "spark://a:x", "spark://", "spark://a:7077/", "local[0]", "local[x]", "locally", "yarn-client", "sc://a", "k8s://"],
)  # fmt: skip
def test_a_master_that_cannot_be_used_is_refused_by_its_text(master: str) -> None:
    problem = setting_problem(master)
    assert problem is not None
    assert (problem.code, problem.location) == ("spark_master_unsupported", "spark.master")
    assert master in problem.message


@pytest.mark.parametrize("master", ["spark://a:7077,b:7077", "spark://[::1]:7077", "k8s://https://a:6443"])
def test_other_masters_can_be_used(master: str) -> None:
    assert setting_problem(master) is None


def test_a_master_that_nobody_runs_is_noticed_and_one_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as taken:
        port = server.getsockname()[1]
        taken.bind(("127.0.0.1", 0))  # nobody listens
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
        assert reach_problem(f"spark://127.0.0.1:{port}") is None
        assert reach_problem(f"spark://{closed},127.0.0.1:{port}") is None
        problem = reach_problem(f"spark://{closed}")
    assert problem is not None
    assert problem.code == "spark_master_unreachable"
    assert "Connection refused" in problem.message
    assert reach_problem("spark://127.0.0.1:99999") is not None
    assert reach_problem("local[*]") is None


def test_java_is_looked_for_where_spark_will_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_problem() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    problem = java_problem()
    assert problem is not None
    assert (problem.code, str(tmp_path) in problem.message) == ("java_missing", True)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_problem() is not None


def test_paths_of_this_host_are_questioned_for_a_cluster_only(tmp_path: Path) -> None:
    paths = [("journal.uri", f"file://{tmp_path}/journal"), ("target.path", str(tmp_path)), ("x", "s3a://bucket/x")]
    assert sharing_problems("local[*]", paths) == ()
    assert sharing_problems("spark://127.0.0.1:7077", paths) == ()
    found = sharing_problems("spark://a:7077", paths)
    assert [(p.code, p.location) for p in found] == [
        ("path_not_shared", "journal.uri"),
        ("path_not_shared", "target.path"),
    ]
