"""Which URLs are taken, and that no secret of a URL is shown."""

from __future__ import annotations

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.urls import parse


@pytest.mark.parametrize(
    ("url", "base", "key"),
    [
        ("s3://bucket/a/*.npy", "s3://bucket", "a/*.npy"),
        ("S3://bucket/a?.npy", "s3://bucket", "a?.npy"),
        ("gs://my.bucket/a b%20c.npy", "gs://my.bucket", "a b%20c.npy"),
        ("az://box/a", "az://box", "a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "a"),
        ("https://example.org:8443/a/b%20c", "https://example.org:8443", "a/b c"),
        ("memory:///a", "memory://", "a"),
    ],
)
def test_a_url_is_a_store_and_a_key(url: str, base: str, key: str) -> None:
    assert parse(url) == (base, key)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:CANARY@bucket/*.npy", "s3://CANARY@bucket/a", "s3://bucket/a?token=CANARY", "gs://bucket?x=CANARY",
        "https://user:CANARY@example.org/a", "https://example.org/a?sig=CANARY", "https://example.org/a#CANARY",
        "https://example.org/a?CANARY", "az://box/a?sv=1&sig=CANARY", "http://u:CANARY@127.0.0.1/a",
        "CANARY://user:CANARY@x/a?y=CANARY",
    ],
)  # fmt: skip
def test_a_url_with_a_secret_is_refused_and_the_secret_not_shown(url: str) -> None:
    for make in (lambda: af.files(url), lambda: af.files([url]), lambda: parse(url)):
        with pytest.raises(af.PipelineError) as caught:
            make()
        assert "CANARY" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket", "empty part"), ("s3://bucket/", "empty part"), ("s3://bucket/a/", "names a folder"),
        ("s3://bucket/a//b", "empty part"), ("s3://bucket/../b", "holds"), ("s3://bu cket/a", "bucket or host"),
        ("s3:///a", "bucket or host"), ("https://ex ample/a", "bucket or host"), ("file:///etc/passwd", "plain path"),
        ("ftp://example.org/a", 'store="fsspec"'),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_right_is_refused(url: str, says: str) -> None:
    with pytest.raises(af.PipelineError, match=says):
        af.files(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a", "https://127.0.0.1/a", "https://[::1]/a", "https://localhost/a", "https://10.0.0.1/a",
        "https://169.254.169.254/latest", "https://metadata.google.internal/a",
    ],
)  # fmt: skip
def test_a_server_that_is_private_or_not_encrypted_must_be_named(url: str) -> None:
    with pytest.raises(af.PipelineError, match=r"allow_http=True|endpoint="):
        af.files(url)
    assert len(af.files(url, allow_http=True)) == 1


def test_an_endpoint_is_an_address_without_a_secret() -> None:
    for endpoint in ("https://user:CANARY@host", "https://host/?x=CANARY", "ftp://CANARY", "CANARY"):
        with pytest.raises(af.PipelineError, match="endpoint must be") as caught:
            ObjectStore("s3://bucket", endpoint=endpoint)
        assert "CANARY" not in str(caught.value)


def test_urls_and_paths_in_one_list_and_unknown_options_are_refused() -> None:
    with pytest.raises(af.PipelineError, match="s3://other is not s3://bucket, which store= names"):
        af.files(["s3://bucket/a", "s3://other/a"], store=ObjectStore("s3://bucket"))
    with pytest.raises(af.PipelineError, match="do not go together"):
        af.files(["s3://bucket/a", "a.npy"])
    with pytest.raises(af.PipelineError, match="options are for URLs"):
        af.files("a.npy", anonymous=True)
    with pytest.raises(af.PipelineError, match="no option 'region'"):
        af.files("s3://bucket/a", region="eu-west-1")
    with pytest.raises(af.PipelineError, match="root is for local files"):
        af.files("https://example.org/a", root="/")
