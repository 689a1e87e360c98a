"""What is told of what is seen, and when: pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from replicator.config import AlertsConfig, Secret
from replicator.config.secrets import Resolved
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage
from replicator.service.alerts.advance import NOTICES_MAX, advance, messages
from replicator.service.alerts.conditions import SeenCondition, SeenConditions
from replicator.service.alerts.quiet import is_quiet
from replicator.state.alert_records import AlertKey, AlertRecord

START = datetime(2026, 1, 30, 12, tzinfo=UTC)  # a Friday
FAILED = SeenCondition(
    kind=AlertKind.REPLICATOR_FAILED, code="log_gap", message="shop has failed.", action="Resume it."
)
STALE = SeenCondition(kind=AlertKind.OBJECTIVE_BREACHED, table="public.orders", message="10 minutes behind.")
NIGHT = {"quiet_hours": [{"start": "22:00", "end": "07:00"}], "time_zone": "Europe/Berlin"}
MINUTE = timedelta(minutes=1)


def config(**changes: Any) -> AlertsConfig:
    return AlertsConfig.model_validate({"after": "0s", **changes})


@dataclass
class Told:
    """Looks again and again, as the watcher does."""

    config: AlertsConfig
    now: datetime = START
    known: dict[AlertKey, AlertRecord] = field(default_factory=dict)
    is_digest: bool = False

    def look(
        self, *conditions: SeenCondition, after: timedelta = timedelta(0), unknown: tuple[AlertKind, ...] = ()
    ) -> list[tuple[AlertEvent, AlertKind | None]]:
        self.now += after
        seen = SeenConditions(conditions={one.key: one for one in conditions}, unknown=frozenset(unknown))
        advanced = advance(self.known.values(), seen, self.config, self.now)
        self.known |= {record.key: record for record in advanced.changed}
        for key in advanced.ended:
            del self.known[key]
        self.is_digest = advanced.is_digest
        return [(notice.event, notice.kind) for notice in advanced.notices]


OPENED, REMINDER, RECOVERED = AlertEvent.OPENED, AlertEvent.REMINDER, AlertEvent.RECOVERED


def test_a_change_is_told_once_and_its_end_once() -> None:
    told = Told(config())
    assert told.look(FAILED) == [(OPENED, FAILED.kind)]
    assert told.look(FAILED, after=MINUTE) == []
    assert told.look(after=MINUTE) == [(RECOVERED, FAILED.kind)]
    assert told.look(after=MINUTE) == []
    assert told.known == {}, "nothing is kept of what is over"


def test_what_passes_quickly_is_never_told() -> None:
    told = Told(config(after="1m"))
    assert told.look(STALE) == []
    assert told.look(after=MINUTE / 2) == []
    assert told.known == {}
    assert told.look(STALE) == []
    assert told.look(STALE, after=MINUTE) == [(OPENED, STALE.kind)]
    # It meets its objective for a moment, in between.
    assert told.look(after=MINUTE / 2) == []
    assert told.look(STALE, after=MINUTE) == []
    assert told.look(after=MINUTE) == []
    assert told.look(after=MINUTE) == [(RECOVERED, STALE.kind)]


def test_a_message_says_since_when_and_until_when() -> None:
    settings = config(after="1m")
    seen = SeenConditions(conditions={FAILED.key: FAILED})
    begun = advance((), seen, settings, START)
    opened = advance(begun.changed, seen, settings, START + MINUTE)
    assert opened.notices[0].since == START
    healed = advance(opened.changed, SeenConditions(conditions={}), settings, START + 5 * MINUTE)
    ended = advance(healed.changed, SeenConditions(conditions={}), settings, START + 6 * MINUTE)
    assert (ended.notices[0].since, ended.notices[0].ended_at) == (START, START + 5 * MINUTE)
    assert (opened.notices[0].action, ended.notices[0].action) == ("Resume it.", None)


def test_what_nobody_knows_stays_as_it_was() -> None:
    told = Told(config())
    low = SeenCondition(kind=AlertKind.SOURCE_LOG_HEADROOM, message="10 % are left.")
    told.look(low)
    assert told.look(after=MINUTE, unknown=(low.kind,)) == []
    assert told.look(after=MINUTE) == [(RECOVERED, low.kind)]


def test_reminders_come_at_their_interval_and_only_while_it_is_open() -> None:
    told = Told(config(remind_every="1h"))
    told.look(FAILED)
    assert told.look(FAILED, after=59 * MINUTE) == []
    assert told.look(FAILED, after=MINUTE) == [(REMINDER, FAILED.kind)]
    assert told.look(FAILED, after=MINUTE) == []
    assert told.look(after=MINUTE) == [(RECOVERED, FAILED.kind)]
    assert told.look(after=timedelta(days=1)) == []


def test_quiet_hours_hold_back_and_tell_what_is_still_true() -> None:
    told = Told(config(**NIGHT), now=datetime(2026, 1, 30, 22, tzinfo=UTC))  # 23:00 in Berlin
    assert told.look(FAILED, STALE) == []
    assert told.look(FAILED, after=timedelta(hours=6)) == []
    # 07:00 in Berlin: the table meets its objective again, and nobody hears of it.
    assert told.look(FAILED, after=timedelta(hours=2)) == [(OPENED, FAILED.kind)]
    assert told.is_digest
    assert set(told.known) == {FAILED.key}


def test_what_recovers_in_quiet_hours_is_told_at_their_end() -> None:
    told = Told(config(**NIGHT, remind_every="1h"), now=datetime(2026, 1, 30, 20, tzinfo=UTC))
    assert told.look(FAILED) == [(OPENED, FAILED.kind)]
    assert told.look(FAILED, after=timedelta(hours=2)) == [], "no reminder at night"
    assert told.look(after=timedelta(hours=2)) == []
    assert told.look(after=timedelta(hours=6)) == [(RECOVERED, FAILED.kind)]
    assert told.is_digest


def test_a_failure_that_comes_back_in_quiet_hours_is_no_news() -> None:
    told = Told(config(**NIGHT), now=datetime(2026, 1, 30, 20, tzinfo=UTC))
    told.look(FAILED)
    assert told.look(after=timedelta(hours=2)) == []
    assert told.look(FAILED, after=timedelta(hours=2)) == []
    assert told.look(FAILED, after=timedelta(hours=6)) == []


def test_kinds_that_quiet_hours_do_not_name_are_sent_at_once() -> None:
    hours = [{"start": "22:00", "end": "07:00", "kinds": ["objective_breached"]}]
    told = Told(config(quiet_hours=hours), now=datetime(2026, 1, 30, 23, tzinfo=UTC))
    assert told.look(FAILED, STALE) == [(OPENED, FAILED.kind)]


@pytest.mark.parametrize(
    ("moment", "quiet"),
    [
        ("2026-01-30T20:59:59+00:00", False),  # 21:59:59 in Berlin
        ("2026-01-30T21:00:00+00:00", True),
        ("2026-01-31T05:59:59+00:00", True),
        ("2026-01-31T06:00:00+00:00", False),
        # In summer the same times of the day are an hour earlier.
        ("2026-07-03T20:00:00+00:00", True),
        ("2026-07-04T04:59:59+00:00", True),
        ("2026-07-04T05:00:00+00:00", False),
    ],
)
def test_quiet_hours_are_by_the_clock_of_their_zone(moment: str, *, quiet: bool) -> None:
    assert is_quiet(config(**NIGHT), AlertKind.NO_WORKER, datetime.fromisoformat(moment)) is quiet


@pytest.mark.parametrize(
    ("moment", "quiet"),
    [
        ("2026-01-30T23:00:00+00:00", True),  # Friday night, which begins on a Friday
        ("2026-01-31T03:00:00+00:00", True),
        ("2026-01-31T23:00:00+00:00", False),
        ("2026-02-01T03:00:00+00:00", False),
    ],
)
def test_days_are_those_on_which_quiet_hours_begin(moment: str, *, quiet: bool) -> None:
    hours = [{"start": "22:00", "end": "07:00", "days": ["fri"]}]
    assert is_quiet(config(quiet_hours=hours), AlertKind.NO_WORKER, datetime.fromisoformat(moment)) is quiet


def of_channels(**channels: dict[str, Any]) -> AlertsConfig:
    return config(commands={name: {"argv": ["true"], **settings} for name, settings in channels.items()})


def sent(settings: AlertsConfig, *conditions: SeenCondition) -> dict[str, AlertMessage]:
    advanced = advance((), SeenConditions(conditions={one.key: one for one in conditions}), settings, START)
    return dict(messages(advanced.notices, settings, replicator="shop", uuid="u", now=START, is_digest=False))


def test_a_channel_gets_the_kinds_that_it_asks_for() -> None:
    found = sent(
        of_channels(all={}, pager={"kinds": ["replicator_failed"]}, other={"kinds": ["no_worker"]}), FAILED, STALE
    )
    assert {name: [alert.kind for alert in message.alerts] for name, message in found.items()} == {
        "all": [STALE.kind, FAILED.kind],
        "pager": [FAILED.kind],
    }
    assert found["pager"].summary == FAILED.message
    assert found["all"].summary == "shop: 2 opened."


def test_a_message_about_many_tables_stays_short() -> None:
    many = [SeenCondition(kind=AlertKind.TABLE_FAILED, table=f"t{n}", message="no") for n in range(NOTICES_MAX + 5)]
    message = sent(of_channels(all={}), *many)["all"]
    assert (len(message.alerts), message.left_out) == (NOTICES_MAX, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_zone": "Mars/Olympus"}, "must be a time zone that this machine knows"),
        ({"quiet_hours": [{"start": "25:00", "end": "07:00"}]}, "must be a time of the day"),
        ({"quiet_hours": [{"start": "07:00", "end": "07:00"}]}, "must differ"),
        (
            {"commands": {"a": {"argv": ["true"]}}, "webhooks": {"a": {"url": Secret("https://h/")}}},
            "the name a is used for two channels",
        ),
        ({"webhooks": {"a": {"url": Secret("http://db.internal/")}}}, "allow_http must be true"),
        ({"webhooks": {"a": {"url": Secret("ftp://h/")}}}, "begins with https://"),
        ({"webhooks": {"a": {"url": "https://h/token"}}}, "is a secret and must not be written in the file"),
        ({"commands": {"a": {"argv": []}}}, "at least 1 item"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        config(**changes)
    assert "token" not in str(caught.value)


def test_plain_http_is_for_this_machine_and_for_those_who_ask_for_it() -> None:
    here, asked = Secret("http://127.0.0.1:1/"), Resolved("http://db.internal/", "${env:URL}")
    found = config(webhooks={"a": {"url": here}, "b": {"url": asked, "allow_http": True}})
    assert "127.0.0.1" not in repr(found)
    assert sorted(found.channels) == ["a", "b"]
