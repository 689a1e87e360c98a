"""The host's clock jumps by a day, forward and back, while a replicator runs: nothing ends, nothing is lost."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import pytest

from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.rig import Rig, has_snapshots, is_running
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

# Answers for the wall clock alone. Waits are measured by the monotonic one, and the kernel's own clock is everybody's.
SHIM: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY);
    void *found = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) abort();
    offset = found;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) begin();
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


@pytest.fixture
def jump(rig: Rig) -> Callable[[timedelta], None]:
    """Sets the wall clock of the replicator's processes off by so much."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (Debian: apt install gcc libc6-dev)")
    library, offset = rig.folder / "clock.so", rig.folder / "clock"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), "-xc", "-", "-ldl"]
    subprocess.run(command, input=SHIM, text=True, check=True)
    offset.write_bytes(bytes(8))
    rig.environ |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(offset)}

    def by(duration: timedelta) -> None:
        with offset.open("r+b", buffering=0) as file:
            file.write(round(duration.total_seconds()).to_bytes(8, sys.byteorder, signed=True))

    return by


def asked(rig: Rig) -> ReplicatorStatus:
    """The status as a command says it that lives in the jumping time, too."""
    return ReplicatorStatus.model_validate_json(rig.command("status", rig.name, "--json").stdout)


def is_current(status: ReplicatorStatus) -> bool:
    return is_running(status) and all(
        table.state is TableState.STREAMING and table.freshness_s is not None and table.freshness_s < 60
        for table in status.tables
    )


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "target"), [("postgresql", "bigquery"), ("mariadb", "bigquery"), ("postgresql", "delta")]
)
def test_a_clock_that_jumps_by_a_day_ends_and_loses_nothing(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, jump: Callable[[timedelta], None]
) -> None:
    process = rig.start()
    streaming = rig.wait_for_status(has_snapshots, process)
    assert streaming.worker is not None
    for days in (1, -1, 0):
        jump(timedelta(days=days))
        wait_until(partial(is_renewed, rig, days), "the lease is renewed in the new time")
        let_it_continue(writer)
        wait_until(lambda: is_current(asked(rig)), rig.output, timeout_s=240)
        worker = asked(rig).worker
        assert worker is not None
        assert worker.epoch == streaming.worker.epoch, "neither fenced nor started again"
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


def is_renewed(rig: Rig, days: int) -> bool:
    """Whether the lease ends at about the time that it is so many days from now."""
    with closing(sqlite3.connect(rig.home / "state.db")) as store:
        ((expires_at,),) = store.execute("SELECT expires_at FROM leases").fetchall()
    expires = datetime.fromisoformat(expires_at)
    now = datetime.now(UTC) if expires.tzinfo else datetime.now(UTC).replace(tzinfo=None)
    return abs(expires - (now + timedelta(days=days))) < timedelta(hours=1)


def let_it_continue(writer: ShopWriter) -> None:
    wanted = writer.transactions + 100
    wait_until(lambda: writer.transactions >= wanted, "the writer continues")
