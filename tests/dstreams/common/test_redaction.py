"""Secret settings, by name or by value."""

from __future__ import annotations

import doctest
from collections.abc import Iterator

import pytest

from dstreams.common import redaction
from dstreams.common.redaction import REGEX_KEY, mask_by, masked, secret_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.executorEnv.CHECKPOINT_KEY", "x"),
        ("spark.yarn.appMasterEnv.API_KEY", "x"),
        ("spark.kubernetes.driverEnv.DB_PASS", "x"),
        ("spark.executorEnv.DB_PWD", "x"),
        ("spark.executorEnv.BASIC_AUTH", "x"),
        ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "x"),
        ("spark.hadoop.fs.s3a.access.key", "x"),
        ("spark.hadoop.fs.s3a.encryption.key", "x"),
        ("spark.hadoop.fs.azure.account.key.mine.blob.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.sas.box.mine.blob.core.windows.net", "x"),
        ("spark.hadoop.aws.credentials.provider", "x"),
        ("spark.ssl.keyPassword", "x"),
        ("spark.mine.passphrase", "x"),
        ("spark.driver.extraJavaOptions", "-Dx=1 -Djavax.net.ssl.trustStorePassword=x"),
        ("spark.driver.extraJavaOptions", "-Ddb.pass=x"),
        ("spark.driver.defaultJavaOptions", "-Dapi-key=x"),
        ("spark.executorEnv.SETTINGS", '{"api_key": "x"}'),
        ("spark.executorEnv.DATABASE_URL", "postgresql://user:a/b@c@host/db"),
        ("spark.executorEnv.BOX", "https://host/box?sv=2024&sig=x"),
    ],
)
def test_what_is_secret(name: str, value: str) -> None:
    """Common names of secrets, also of variables; and values that contain one."""
    assert secret_settings({})(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.app.name", "sums by key"),
        ("spark.authenticate", "true"),
        ("spark.acls.enable", "true"),
        ("spark.hadoop.hadoop.security.authorization", "true"),
        ("spark.network.crypto.authEngineVersion", "2"),
        ("spark.shuffle.sort.bypassMergeThreshold", "200"),
        ("spark.executorEnv.CHECKPOINT_KEY_FILE", "/etc/checkpoint/key"),
        ("spark.master", "spark://host:7077"),
        ("spark.driver.extraJavaOptions", "-Djava.net.preferIPv6Addresses=false --add-opens=a=b"),
        ("spark.redaction.regex", "(?i)secret|password"),
    ],
)
def test_what_is_not_secret(name: str, value: str) -> None:
    """A flag is not secret, whatever its name: a restart without it would be less safe."""
    assert not secret_settings({})(name, value)


def test_the_rule_of_spark_counts() -> None:
    """``spark.redaction.regex`` matches names and values, in addition to our own rules."""
    is_secret = secret_settings({REGEX_KEY: "(?i)mine"})
    assert is_secret("spark.Mine", "x")
    assert is_secret("spark.x", "what is mine")
    assert is_secret("spark.db.password", "x")
    assert not is_secret("spark.x", "yours")


def test_a_rule_that_python_cannot_read_hides_everything() -> None:
    """A regex that only Java understands hides every setting."""
    assert secret_settings({REGEX_KEY: r"\p{Alpha}+"})("spark.x", "y")


@pytest.fixture
def _rule_put_back() -> Iterator[None]:
    yield
    mask_by({})


def test_examples() -> None:
    """The example of the function runs."""
    assert doctest.testmod(redaction).failed == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("connect(password='a b', user='me')", "connect(password=***, user='me')"),
        ("dsn host=db user=me password=hunter2 failed", "dsn host=db user=me password=*** failed"),
        ('{"api_key": "x y", "id": 7}', '{"api_key": ***, "id": 7}'),
        ("{'token': 'abc', 'user': 'me'}", "{'token': ***, 'user': 'me'}"),
        ("401 for Authorization: Bearer abcdef012345", "401 for Authorization: Bearer ***"),
        ("postgresql://me:pw@db/x?sslmode=require", "postgresql://me:***@db/x?sslmode=***"),
        ("password: hunter2", "password: ***"),
        ("SASL_PASSWORD:hunter2 and more", "SASL_PASSWORD:*** and more"),
        ("X-Api-Key: hunter2\nAccept: x", "X-Api-Key: ***\nAccept: x"),
        ("Cookie: session=hunter2; b=2\nAccept: x", "Cookie: ***\nAccept: x"),
        ("{'sasl.password': b'hunter2', 'a': 1}", "{'sasl.password': ***, 'a': 1}"),
        ("{'password': ['hunter2']}", "{'password': ***]}"),
        ("('password', 'hunter2')", "('password', ***)"),
        ("ssl.keystore.password -> hunter2", "ssl.keystore.password -> ***"),
        ("run --password hunter2 -v", "run --password *** -v"),
        ("password=hun,ter2 x=1", "password=*** x=1"),
        ("f(password=hun;t)er'2), y", "f(password=***), y"),
        ('password="hunter2\nsecond" x', "password=*** x"),
        ("password='hunter2 of a text that was cut", "password=*** of a text that was cut"),
        ("https://h/?password=x&user=me", "https://h/?password=***&user=***"),
        (
            "key=-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----, a=1",
            "key=-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----, a=1",
        ),
        ("pem -----BEGIN PRIVATE KEY-----hunter2", "pem -----BEGIN PRIVATE KEY-----***"),
        ("x='cut\npassword=hunter2\ny='z'", "x='cut\npassword=***\ny='z'"),
    ],
)
def test_secrets_in_a_text(text: str, told: str) -> None:
    """Values with a secret name are masked, and nothing else; masking twice changes nothing."""
    assert masked(text) == masked(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "f at app.py:3 failed for key 'a': KeyError: 1",
        "no price for key=7, group_key='b'",
        "failed for record {'user': 'me', 'text': 'to be or not to be'}",
        "unexpected token: ',' at 5; use_password=true",
        "java.io.FileNotFoundException: file:/data/x=1/part-0",
        "TokenExpiredError: it is too old",
        "the token, and the password of me",
    ],
)
def test_texts_without_secrets(text: str) -> None:
    """Keys and records, which users look up in an error, are shown."""
    assert masked(text) == text


def test_a_text_of_any_length_costs_what_it_is_long() -> None:
    """The cost is linear: errors of users may have any length and any characters."""
    for text in (
        "a" * 200_000,
        "a=" * 100_000,
        "'a'" * 50_000,
        "x-y." * 50_000,
        "a: " * 70_000,
        "'a', " * 40_000,
        "-" * 200_000,
        "k " * 90_000,
    ):
        assert len(masked(text)) == len(text)


@pytest.mark.usefixtures("_rule_put_back")
def test_the_rule_of_spark_counts_in_texts() -> None:
    """By names and by values."""
    mask_by({REGEX_KEY: "(?i)mine"})
    assert masked("mine=1 yours=2 theirs='is mine'") == "mine=*** yours=2 theirs=***"
    mask_by({REGEX_KEY: r"\p{Alpha}+"})
    assert masked("yours=2") == "yours=***"
