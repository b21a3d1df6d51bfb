"""What is secret among settings, by its name or by its value."""

from __future__ import annotations

import pytest

from dstreams.redaction import REGEX_KEY, secret_settings


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
    """Names as people call secrets, also of variables; and values that tell one within."""
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
    """A flag is none, whatever it is called: a restart without it would be less safe."""
    assert not secret_settings({})(name, value)


def test_the_rule_of_spark_counts() -> None:
    """``spark.redaction.regex`` finds names and values, besides what is found anyway."""
    is_secret = secret_settings({REGEX_KEY: "(?i)mine"})
    assert is_secret("spark.Mine", "x")
    assert is_secret("spark.x", "what is mine")
    assert is_secret("spark.db.password", "x")
    assert not is_secret("spark.x", "yours")


def test_a_rule_that_python_cannot_read_hides_everything() -> None:
    """It is a regex of Java."""
    assert secret_settings({REGEX_KEY: r"\p{Alpha}+"})("spark.x", "y")
