"""Secrets that are written out where any text may stand are refused with their path, and never shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replicator.config import load
from replicator.model.errors import ConfigError

from .models import SOURCES, TARGETS

CANARY = "canary-in-the-file-51c"


def found(block: dict[str, Any]) -> list[str]:
    text = json.dumps(
        {
            "name": "shop",
            "source": {"type": "postgresql", "host": "h", "password": "${env:S}"},
            "target": {"type": "delta", "path": "/x"},
            **block,
        }
    )
    try:
        load(text, sources=SOURCES, targets=TARGETS, origin="shop.yaml", env={"S": "kept elsewhere"})
    except ConfigError as error:
        shown = f"{error!r} {error} {error.problems}"
        assert CANARY not in shown
        return [f"{p.code} {(p.location or '').split(' ', 1)[-1]}" for p in error.problems]
    return []


def spark(**settings: str) -> dict[str, Any]:
    return {"spark": {"settings": {name.replace("__", "."): value for name, value in settings.items()}}}


def argv(*words: str) -> dict[str, Any]:
    return {"alerts": {"commands": {"pager": {"argv": ["/bin/page", *words]}}}}


@pytest.mark.parametrize(
    ("block", "path"),
    [
        (spark(spark__hadoop__fs__s3a__secret__key=CANARY), 'spark.settings["spark.hadoop.fs.s3a.secret.key"]'),
        (spark(spark__authenticate__secret=CANARY), 'spark.settings["spark.authenticate.secret"]'),
        (spark(spark__executorEnv__DB_PASSWORD=CANARY), 'spark.settings["spark.executorEnv.DB_PASSWORD"]'),
        (
            spark(spark__driver__extraJavaOptions=f"-Xmx1g -Dhttp.proxyPassword={CANARY}"),
            'spark.settings["spark.driver.extraJavaOptions"]',
        ),
        (spark(spark__jars__repositories=f"https://me:{CANARY}@repo/x"), 'spark.settings["spark.jars.repositories"]'),
        ({"lineage": {"url": f"https://{CANARY}@marquez"}}, "lineage.url"),
        ({"lineage": {"url": f"https://u:{CANARY}@marquez"}}, "lineage.url"),
        ({"lineage": {"url": f"https://marquez/?api_key={CANARY}"}}, "lineage.url"),
        (argv(f"https://u:{CANARY}@host/"), "alerts.commands.pager.argv[1]"),
        (argv("--token", CANARY), "alerts.commands.pager.argv[2]"),
        (argv(f"--token={CANARY}"), "alerts.commands.pager.argv[1]"),
        (argv("-H", f"Authorization: Bearer {CANARY}"), "alerts.commands.pager.argv[2]"),
        ({"alerts": {"webhooks": {"ops": {"url": f"https://u:{CANARY}@h/"}}}}, "alerts.webhooks.ops.url"),
        ({"journal": {"uri": f"s3://key:{CANARY}@bucket/x"}}, "journal.uri"),
        ({"journal": {"uri": f"s3://bucket/x?secret_key={CANARY}"}}, "journal.uri"),
        ({"lineage": {"url": f"https://marquez/?sig={CANARY}"}}, "lineage.url"),
        (spark(spark__hadoop__fs__s3a__encryption__key=CANARY), 'spark.settings["spark.hadoop.fs.s3a.encryption.key"]'),
        (spark(spark__hadoop__fs__azure__sas__c__a=CANARY), 'spark.settings["spark.hadoop.fs.azure.sas.c.a"]'),
        (
            spark(spark__hadoop__fs__azure__account__key__a=CANARY),
            'spark.settings["spark.hadoop.fs.azure.account.key.a"]',
        ),
        (spark(spark__jars__repositories=f"https://{CANARY}@repo/x"), 'spark.settings["spark.jars.repositories"]'),
        (argv(f"https://h/alert?code={CANARY}"), "alerts.commands.pager.argv[1]"),
        (argv(f"https://h/alert?key={CANARY}"), "alerts.commands.pager.argv[1]"),
        (
            {"alerts": {"commands": {"pager": {"argv": ["docker", "run", "-u", "a:b", "curl", "-u", f"me:{CANARY}"]}}}},
            "alerts.commands.pager.argv[6]",
        ),
        (argv(f"https://hooks.slack.com/services/T0/B0/{CANARY}"), "alerts.commands.pager.argv[1]"),
        (argv("-u", f"me:{CANARY}"), "alerts.commands.pager.argv[2]"),
        (argv("--user", f"me:{CANARY}"), "alerts.commands.pager.argv[2]"),
        (argv("-H", f"PRIVATE-TOKEN: {CANARY}"), "alerts.commands.pager.argv[2]"),
        (argv("-H", f"Api-Key: {CANARY}"), "alerts.commands.pager.argv[2]"),
        (argv("-H", f"Cookie: session={CANARY}"), "alerts.commands.pager.argv[2]"),
        (argv("-d", f'{{"token": "{CANARY}"}}'), "alerts.commands.pager.argv[2]"),
    ],
)
def test_a_secret_that_is_written_out_is_refused_with_its_path(block: dict[str, Any], path: str) -> None:
    assert found(block) == [f"literal_secret {path}"]


@pytest.mark.parametrize(
    "block",
    [
        spark(spark__hadoop__fs__s3a__secret__key="${env:S}"),
        spark(spark__jars__repositories="https://me:${env:S}@repo/x"),
        spark(spark__hadoop__fs__s3a__aws__credentials__provider="org.apache.Provider"),
        spark(spark__hadoop__hadoop__security__credential__provider__path="jceks://file/x"),
        spark(spark__kubernetes__authenticate__driver__oauthTokenFile="/var/run/token"),
        spark(spark__authenticate="true", spark__authenticate__secretBitLength="256"),
        spark(spark__driver__extraJavaOptions="-XX:+UseParallelGC -Duser.timezone=UTC"),
        {"lineage": {"url": "https://marquez:5000/?project=a@b"}},
        argv(
            "-u", "me", "-p", "-plain", "Content-Type: application/json", '{"team": "data"}', "https://h/?team=x&zip=1"
        ),
        spark(spark__hadoop__fs__s3a__encryption__key="arn:aws:kms:us-west-2:360379543683:key/071a86ff"),
        argv("docker", "run", "-u", "1000:1000", "Idempotency-Key: 7", "http://auth-token:5000/"),
        argv("-u", "app:app", "https://h/?code=200&key=order_lines_of_today"),
        {"alerts": {"commands": {"pager": {"argv": ["/usr/bin/docker", "exec", "-u", "app:staff", "pager", "page"]}}}},
        {"lineage": {"url": "https://marquez/?key=orders&code=A1"}},
        argv("--team", "data", "--token-file", "/etc/token", "me@example.org", "--password", "-v"),
    ],
)
def test_what_is_no_secret_and_what_comes_from_elsewhere_is_taken(block: dict[str, Any]) -> None:
    assert found(block) == []


@pytest.mark.parametrize(
    "written",
    [f"{CANARY}${{env:S}}", f"${{env:S}}{CANARY}", f"x${{env:S}}{CANARY}${{env:S}}", f"$${{env:S}}{CANARY}${{env:S}}"],
)
def test_a_secret_of_which_a_part_is_written_out_is_refused(written: str) -> None:
    source = {"type": "postgresql", "host": "h", "password": written}
    assert found({"source": source}) == ["literal_secret source.password"]


def test_of_an_address_that_is_a_secret_only_the_password_may_not_be_written_out() -> None:
    def ops(url: str) -> list[str]:
        return found({"alerts": {"apprise": {"ops": {"url": url}}}})

    for taken in (
        "https://hooks/${env:S}",
        "mailtos://me:${env:S}@example.org?to=ops@example.org",
        "${env:S}",
        " ${env:S} ",
    ):
        assert ops(taken) == []
    assert ops(f"mailtos://me:{CANARY}@example.org?to=${{env:S}}") == ["literal_secret alerts.apprise.ops.url"]


def of_source(settings: str) -> str:
    return f"name: shop\nsource: {{type: postgresql, host: h, {settings}}}\ntarget: {{type: delta, path: /x}}\n"


def and_also(block: str) -> str:
    return of_source('password: "${env:S}"') + block + "\n"


MISTAKES = (
    *(
        of_source(f"password: {written}")
        for written in (
            "SECRET", "[SECRET]", "{env: SECRET}", "{SECRET: x}", '"${env:SECRET}"', '"${vault:SECRET}"', '"${SECRET}"',
            "SECRET, password: SECRET", "!vault SECRET", "!SECRET x", "!SECRET!x y", "*SECRET", "*SECRET'", "&SECRET &x", "&a SECRET",
            '"SECRET', "SECRET}x", "%SECRET", "@SECRET", "`SECRET", "SECRET: x", '"SECRET\\q"', '"SECRET\x07"', "|SECRET", "? SECRET",
        )
    ),
    of_source("passwd: SECRET"), of_source("url: postgresql://u:SECRET@db/d"), of_source("port: SECRET"), of_source("host: postgresql://u:SECRET@db/d"),
    "name: shop\nsource: postgresql://u:SECRET@db/d\n", "name: shop\nsource: {type: 'postgresql://u:SECRET@db/d'}\n",
    "SECRET", "- SECRET", "PASSWORD=SECRET", "name: shop\n--- SECRET\n", "name: shop\nsource:\n\tpassword: SECRET\n",
    '{"name": "shop", "source": {"password": "SECRET"}, }', '{"name": "shop", "source": {"password": "SECRET", "password": "SECRET"}}',
    *(
        and_also(f"alerts: {{webhooks: {written}}}")
        for written in (
            "https://h/SECRET", "[https://h/SECRET]", "{ops: https://h/SECRET}", "{ops: {url: https://h/SECRET}}",
            "{'https://h/SECRET': {}}",
            "{'https://h/SECRET': {url: '${env:S}'}}", "{'https://h/SECRET': }",
        )
    ),
    and_also("alerts: {apprise: {ops: {url: tgram://SECRET/1}}}"),
    and_also("alerts: {commands: {ops: page --token SECRET}}"), and_also("alerts: {commands: {ops: {argv: page --token SECRET}}}"),
    and_also("lineage: https://u:SECRET@h"), and_also("lineage: {url: https://h, api_key: SECRET}"), and_also("password: SECRET"),
    and_also("spark: {settings: {spark.hadoop.fs.s3a.secret.key: [SECRET]}}"),
    and_also("spark: {settings: {spark.hadoop.fs.s3a: {secret.key: SECRET}}}"),
    and_also("spark: {settings: spark.hadoop.fs.s3a.secret.key=SECRET}"), and_also("spark: {settings: {hadoop.fs.s3a.secret.key: SECRET}}"),
    and_also("spark: {master: 'spark://u:SECRET@h'}"),
)  # fmt: skip
"""What people write who do not know references, or YAML."""


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_no_mistake_in_a_file_has_its_secret_repeated(number: int) -> None:
    # Each has a secret of its own: what one of them registers is of no help to the next one.
    secret = f"canary-{number}-in-a-file"
    with pytest.raises(ConfigError) as caught:
        load(
            MISTAKES[number].replace("SECRET", secret), sources=SOURCES, targets=TARGETS, origin="shop.yaml", env={"S": "kept elsewhere"}
        )  # fmt: skip
    assert secret not in f"{caught.value!r} {caught.value} {caught.value.problems}"
