"""Files in object stores: complete, created once, and refused if the store cannot do that."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from checkpoint import (
    AlreadyExistsError,
    CheckpointError,
    Files,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.storage import object_files
from checkpoint.storage.object_files import ObjectFiles
from checkpoint.testing import check_files
from tests.support.fault_proxy import Action, Fault, FaultProxy, running_fault_proxy
from tests.support.s3_server import S3Server

obstore = pytest.importorskip("obstore", reason="pip install obstore")


def new_files() -> ObjectFiles:
    return ObjectFiles(f"memory://{uuid.uuid4()}/checkpoint/")


class Store:
    """A store in memory that can be made to fail, before or after a request had its effect."""

    failing: ClassVar[dict[str, Exception]] = {}
    losing: ClassVar[dict[str, Exception]] = {}
    is_careless = False

    def __init__(self) -> None:
        self.inner = obstore.store.MemoryStore()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if name in self.failing:
                raise self.failing[name]
            if name == "put" and self.is_careless:
                named["mode"] = "overwrite"
            result = method(*arguments, **named)
            if name in self.losing:
                raise self.losing.pop(name)
            return result

        return call

    def names(self) -> list[str]:
        return sorted(one["path"] for one in self.inner.list().collect())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Replace s3 by a store in memory."""
    made = Store()
    monkeypatch.setattr(object_files, "_open", lambda url, options: made)
    monkeypatch.setattr(object_files, "_stores", {})
    monkeypatch.setattr(object_files, "_proved", set())
    monkeypatch.setattr(Store, "failing", {})
    monkeypatch.setattr(Store, "losing", {})
    return made


@pytest.fixture
def on_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Allow obstore to connect to the server."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_files, "_stores", {})
    return s3


@pytest.fixture
def proxy(on_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Let requests to the server pass a proxy that can fail them."""
    quick = {**object_files._RETRIES, "max_retries": 3, "retry_timeout": timedelta(seconds=300)}
    monkeypatch.setattr(object_files, "_RETRIES", quick)
    with running_fault_proxy(on_s3.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        yield running


def test_they_conform() -> None:
    """Memory fulfils the contract of Files."""
    check_files(new_files)


@pytest.mark.deep
def test_they_conform_on_s3(on_s3: S3Server) -> None:
    """A server of S3 fulfils the contract of Files."""
    check_files(lambda: ObjectFiles(on_s3.new_url()))


@pytest.mark.deep
def test_a_large_file_on_s3(on_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is created only once, and leaves nothing else."""
    monkeypatch.setattr(object_files, "PART_BYTES", 5 << 20)  # the least that S3 takes
    chunks = [bytes([number]) * (1 << 20) for number in range(12)]
    files = ObjectFiles(on_s3.new_url())
    assert files.create("a", chunks) == 12 << 20
    with pytest.raises(AlreadyExistsError, match="are created only once"):
        files.create("a", chunks)
    assert b"".join(files.read_chunks("a", 7 << 20)) == b"".join(chunks)
    assert list(files._listed("")) == ["a"]
    assert files.temporary() == []


def test_they_travel_to_workers(store: Store) -> None:
    """A pickled copy reads the files, and needs no second probe."""
    files = ObjectFiles("s3://bucket/c")
    files.create("a", [b"x"])
    data = pickle.dumps(files)
    object_files._proved.clear()
    copy = pickle.loads(data)
    assert copy.url == files.url
    assert copy.read("a") == b"x"
    before = len(store.calls)
    copy.create("b", [b"x"])
    assert store.calls[before:] == ["put"]


@pytest.mark.parametrize(
    "url", ["sftp://host/x", "ftp://host/x", "hdfs://host/x", "simplecache::s3://b/x", "nonsense"]
)
def test_protocols_without_exclusive_create_are_refused(url: str) -> None:
    """The error explains that the store cannot create a file only once."""
    with pytest.raises(StorageRefusedError, match="is not known to create a file whole and only"):
        ObjectFiles(url).create("a", [b"x"])


def test_a_store_that_ignores_the_condition_is_found_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store itself must refuse a second create."""
    monkeypatch.setattr(Store, "is_careless", True)
    with pytest.raises(StorageRefusedError, match=r"s3://bucket replaces an existing file"):
        ObjectFiles("s3://bucket").create("a", [b"x"])
    assert store.names() == []


def test_a_store_without_conditions_is_refused(store: Store) -> None:
    """A client that cannot send the condition fails the proof, too."""
    store.failing["put"] = obstore.exceptions.NotSupportedError("no conditional put")
    with pytest.raises(StorageRefusedError, match="no conditional put"):
        ObjectFiles("s3://bucket").create("a", [b"x"])


def test_the_proof_leaves_nothing_and_is_made_once(store: Store) -> None:
    """The probe is deleted, and made once for a bucket in a process."""
    ObjectFiles("s3://bucket/c").create("a", [b"x"])
    assert store.calls == ["put", "put", "delete", "put"]
    ObjectFiles("s3://bucket/d").create("b", [b"x"])
    assert store.calls[4:] == ["put"]
    assert store.names() == ["c/a", "d/b"]


def large(upto: int = 1000, fails: BaseException | None = None) -> Iterator[bytes]:
    for number in range(0, upto, 20):
        yield f"{number:020}".encode()
    if fails is not None:
        raise fails


@pytest.fixture
def in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Treat files of more than 100 bytes as large."""
    monkeypatch.setattr(object_files, "PART_BYTES", 100)
    return store


def test_a_large_file_is_sent_in_parts(in_parts: Store) -> None:
    """It gets its name in one conditional request, and a hidden one does not remain."""
    files = ObjectFiles("s3://bucket/c")
    assert files.create("a", large()) == 1000
    assert files.read("a") == b"".join(large())
    with pytest.raises(AlreadyExistsError, match="are created only once"):
        files.create("a", large(1020))
    assert b"".join(files.read_chunks("a", 30)) == b"".join(large())
    assert in_parts.names() == ["c/a"]
    check_files(lambda: ObjectFiles(f"s3://bucket/{uuid.uuid4()}"))


@pytest.mark.parametrize("error", [LookupError("no such state"), KeyboardInterrupt()])
def test_an_error_of_who_makes_a_large_file_leaves_nothing(
    in_parts: Store, error: BaseException
) -> None:
    """An error of the chunks is passed on."""
    with pytest.raises(type(error)) as raised:
        ObjectFiles("s3://bucket/c").create("a", large(fails=error))
    assert raised.value is error
    assert in_parts.names() == []


GENERIC = obstore.exceptions.GenericError
DENIED = obstore.exceptions.PermissionDeniedError
EXPIRED = GENERIC("Error performing PUT: Server returned non-2xx status code: 400 Bad Request")


@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("put", GENERIC("slow"), StorageRefusedError),
        ("put", DENIED("no"), StorageRefusedError),
        ("copy", GENERIC("slow"), StorageUncertainError),
        ("copy", DENIED("no"), StorageRefusedError),
    ],
)
def test_of_a_file_in_parts_only_the_last_request_is_uncertain(
    in_parts: Store, call: str, error: Exception, kind: type[CheckpointError]
) -> None:
    """Parts without it never become a file."""
    files = ObjectFiles("s3://bucket/c")
    files.require_exclusive_create()
    in_parts.failing[call] = error
    with pytest.raises(kind, match=r"s3://bucket/c/a") as raised:
        files.create("a", large())
    assert type(raised.value) is kind
    assert in_parts.names() == []


def test_a_large_file_of_which_the_news_was_lost(in_parts: Store) -> None:
    """Its content shows that it was created."""
    files = ObjectFiles("s3://bucket/c")
    files.require_exclusive_create()
    in_parts.losing["copy"] = GENERIC("connection reset")
    assert files.create("a", large()) == 1000
    assert files.read("a") == b"".join(large())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setattr(object_files, "_stores", {})
    for url, extra in (("gs://bucket", "gcs"), ("abfs://bucket", "azure"), ("s3://bucket", "s3")):
        with pytest.raises(StorageRefusedError, match=rf"pip install 'dstreams\[{extra}\]'"):
            ObjectFiles(url).create("a", [b"x"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (obstore.exceptions.AlreadyExistsError("there"), StorageUncertainError),
        (DENIED("no"), StorageRefusedError),
        (EXPIRED, StorageRefusedError),
        (FileNotFoundError("no bucket"), StorageRefusedError),
        (obstore.exceptions.NotSupportedError("no"), StorageRefusedError),
        (GENERIC("connection reset"), StorageUncertainError),
        (GENERIC("Server returned non-2xx status code: 503 Slow Down"), StorageUncertainError),
    ],
)
def test_errors_of_a_create_tell_whether_it_may_have_happened(
    store: Store, error: Exception, kind: type[CheckpointError]
) -> None:
    """Refused requests did not happen; lost ones may have."""
    files = ObjectFiles("s3://bucket/c")
    files.require_exclusive_create()
    store.failing["put"] = error
    with pytest.raises(kind, match=r"s3://bucket/c/a") as raised:
        files.create("a", [b"x"])
    assert type(raised.value) is kind
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [GENERIC("reset"), obstore.exceptions.AlreadyExistsError("of the first try")]
)
def test_a_create_of_which_the_news_was_lost(store: Store, error: Exception) -> None:
    """It is known by its token, also if the client sent the request again."""
    files = ObjectFiles("s3://bucket/c")
    files.require_exclusive_create()
    store.losing["put"] = error
    assert files.create("a", [b"x"]) == 1
    with pytest.raises(AlreadyExistsError):
        files.create("a", [b"x"])


def test_a_lost_create_of_another_name_is_that_of_another_writer(store: Store) -> None:
    """The file exists, and is not this one."""
    files = ObjectFiles("s3://bucket/c")
    files.create("a", [b"x"])
    store.failing["put"] = GENERIC("connection reset")
    with pytest.raises(AlreadyExistsError):
        files.create("a", [b"x"])
    store.failing["get"] = GENERIC("connection refused")
    with pytest.raises(StorageUncertainError, match=r"reset.*refused"):
        files.create("a", [b"x"])


def test_an_error_of_the_network_is_not_taken_for_absence(store: Store) -> None:
    """A failed listing is an error: a stream without commits would start from scratch."""
    files = ObjectFiles("s3://bucket/c")
    files.create("commits/1", [b"x"])
    reset = GENERIC("connection reset")
    store.failing.update(list=reset, list_with_delimiter=reset, head=reset, get=reset)
    for call in (lambda: files.list("commits/"), files.directories):
        with pytest.raises(StorageRefusedError, match=r"cannot list .*connection reset"):
            call()
    with pytest.raises(StorageRefusedError, match=r"cannot look up .*connection reset"):
        files.exists("commits/1")
    with pytest.raises(StorageRefusedError, match="cannot read"):
        list(files.read_chunks("commits/1", 10))
    store.failing["list"] = FileNotFoundError("no such bucket")
    with pytest.raises(StorageRefusedError, match="no such bucket"):
        files.list("")


def test_passwords_and_options_are_not_shown() -> None:
    """Representations and messages contain no secrets."""
    files = ObjectFiles("s3://user:hunter2@host/x", account_key="hunter3")
    assert files.url == "s3://user:***@host/x"
    assert repr(files) == "ObjectFiles('s3://user:***@host/x')"
    assert ObjectFiles("abfs://box@account.net/x").url == "abfs://box@account.net/x"
    for password in ("a/b", "a@b", "a:b", "//@"):
        assert ObjectFiles(f"s3://user:{password}@host/x").url == "s3://user:***@host/x"
    assert ObjectFiles("az://box/x?sig=hunter2&sv=2").url == "az://box/x?sig=***&sv=***"


def test_errors_of_a_store_repeat_no_secrets(store: Store) -> None:
    """Errors contain no secrets of the URL or the options, and no details for debugging."""
    store.failing["get"] = GENERIC(
        "403 of https://box.net/x?sig=hunter23 with hunter22\n\nDebug source:\nGeneric"
    )
    files = ObjectFiles("s3://bucket/c", account_key="hunter22")
    with pytest.raises(StorageRefusedError, match=r"x\?sig=\*\*\* with \*\*\*; check"):
        files.read("a")


def test_foreign_files_are_not_listed(store: Store) -> None:
    """Only names that create could have made are listed."""
    files = ObjectFiles("s3://bucket/a%20b/c")
    files.create("d/one", [b"x"])
    for name in (".probe-1", "a b", "one~"):
        store.inner.put(files._path(f"d/{name}"), b"x")
    assert files.list("") == ["d/one"]
    assert files.directories() == ["d"]


def test_importing_checkpoint_does_not_import_obstore() -> None:
    """Workers with local disks do not import it."""
    code = "import sys, checkpoint; print('obstore' in sys.modules, 'boto3' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False False"


def test_a_file_is_replaced(in_parts: Store) -> None:
    """A large one keeps its old content until the last request."""
    files = ObjectFiles("s3://bucket/c")
    files.create("a/file", [b"old"])
    files.replace("a/file", [b"new ", b"content"])
    assert files.read("a/file") == b"new content"
    with pytest.raises(ValueError, match="no more"):
        files.replace("a/file", large(1000, ValueError("no more")))
    assert files.read("a/file") == b"new content"
    files.replace("a/file", large())
    assert files.read("a/file") == b"".join(large())
    assert files.list("") == ["a/file"]


# S3 that fails -------------------------------------------------------------------------------


def new_files_on(s3: S3Server) -> Files:
    files = ObjectFiles(s3.new_url())
    files.create("there", [b"content"])
    return files


@pytest.mark.deep
@pytest.mark.parametrize(
    ("action", "times"), [("throttle", 2), ("fail", 2), ("lose answer", 1), ("reset", 1)]
)
def test_a_request_that_fails_for_a_moment(
    on_s3: S3Server, proxy: FaultProxy, action: Action, times: int
) -> None:
    """It is sent again, or its effect is looked up: each file is created once."""
    files = new_files_on(on_s3)
    proxy.inject(Fault("GET", "there", action, times))
    assert files.read("there") == b"content"
    proxy.inject(Fault("GET", "list-type", action, times))
    assert files.list("") == ["there"]
    proxy.inject(Fault("PUT", "new", action, times))
    try:
        files.create("new", [b"content"])
    except StorageUncertainError:
        assert action == "reset", "a request that was carried out is found"
    else:
        assert files.read("new") == b"content"
    assert proxy.is_calm


@pytest.mark.deep
@pytest.mark.parametrize("action", ["throttle", "fail"])
def test_a_store_that_keeps_failing(on_s3: S3Server, proxy: FaultProxy, action: Action) -> None:
    """Retries are bounded, and the error has the answer of the store."""
    files = new_files_on(on_s3)
    proxy.inject(Fault("GET", "there", action, times=1000))
    before = len(proxy.requests)
    with pytest.raises(StorageRefusedError, match=r"50[03]"):
        files.read("there")
    assert len(proxy.requests) - before == 4
    proxy.inject(Fault("PUT", "new", action, times=1000))
    with pytest.raises(StorageUncertainError, match=r"50[03]"):
        files.create("new", [b"x"])


@pytest.mark.deep
def test_a_store_that_does_not_answer(
    on_s3: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request times out, and the effect of a create is looked up."""
    monkeypatch.setattr(object_files, "_ANSWER", timedelta(seconds=5))
    files = new_files_on(on_s3)
    proxy.inject(Fault("PUT", "new", "hang"))
    assert files.create("new", [b"x"]) == 1
    proxy.inject(Fault("GET", "there", "hang"))
    assert files.read("there") == b"content"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("action", "reason"), [("expired", "ExpiredToken"), ("forbidden", "403|InvalidAccessKeyId")]
)
def test_credentials_that_are_refused(
    on_s3: S3Server, proxy: FaultProxy, action: Action, reason: str
) -> None:
    """The error comes at once, says why, and repeats no secret."""
    files = new_files_on(on_s3)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    for method, part, call in (
        ("GET", "there", lambda: files.read("there")),
        ("GET", "list-type", lambda: files.list("")),
        ("PUT", "new", lambda: files.create("new", [b"x"])),
    ):
        before = len(proxy.requests)
        proxy.inject(Fault(method, part, action))
        with pytest.raises(StorageRefusedError, match=reason) as raised:
            call()
        assert len(proxy.requests) - before == 1
        assert secret not in str(raised.value)
    assert secret.encode() not in pickle.dumps(files)


@pytest.mark.deep
def test_missing_credentials(on_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of the store says that there are none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageRefusedError, match="credentials"):
        ObjectFiles(on_s3.new_url()).create("a", [b"x"])


@pytest.mark.deep
def test_credentials_of_a_profile(
    on_s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """boto3 reads them, as other programs of AWS do."""
    file = tmp_path / "credentials"
    file.write_text(
        "[clicks]\naws_access_key_id = AKIATESTTESTTESTTEST\naws_secret_access_key = of-the-tests\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "clicks")
    files = ObjectFiles(on_s3.new_url())
    files.create("a", [b"x"])
    assert files.read("a") == b"x"


@pytest.mark.deep
def test_a_missing_bucket(on_s3: S3Server) -> None:
    """It is an error, not an empty checkpoint."""
    files = ObjectFiles("s3://no-such-bucket/c")
    with pytest.raises(StorageRefusedError, match=r"NoSuchBucket|not found|404"):
        files.list("")
    with pytest.raises(StorageRefusedError, match=r"NoSuchBucket|not found|404"):
        files.create("a", [b"x"])
