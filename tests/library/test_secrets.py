"""Passwords and tokens that a program is given are in no error and in no record."""

import pytest

from trainyard_torch import Store, StoreError
from trainyard_torch.checkpoint.store import without_user
from trainyard_torch.export.record import configured


def test_errors_of_a_store_hold_no_password() -> None:
    store = Store("memory://user:hunter2@host/folder")
    assert store.url == "memory://host/folder"
    with pytest.raises(StoreError) as raised:
        Store("nonsense://user:hunter2@host/folder")
    assert "hunter2" not in str(raised.value)
    assert without_user("s3://bucket/a@b") == "s3://bucket/a@b"
    assert without_user("/folder/a@b") == "/folder/a@b"


def test_record_holds_no_secret_arguments() -> None:
    words = [
        "--token=abc",
        "--api-key",
        "xyz",
        "--lr",
        "0.1",
        "HF_TOKEN=abc",
        "--url=https://me:pw@host/x",
        "tokenizer",
    ]
    assert configured(None, words)["arguments"] == [
        *("--token=(redacted)", "--api-key", "(redacted)", "--lr", "0.1", "HF_TOKEN=(redacted)"),
        *("--url=https://host/x", "tokenizer"),
    ]
