import json
from typing import Any

import pytest

from trainyard_torch.checkpoint.manifest import CorruptCheckpointError, File, Manifest, Name, digest

WHOLE = Manifest(
    120, 3, 4, {"data": 2, "tensor": 2}, {"cursor": 960}, {"loss": 0.5}, 1.5, {"a/__0_0.distcp": File(7, "ab" * 32)}
)


def test_what_is_written_is_read() -> None:
    assert Manifest.parse(WHOLE.text(), Name(120, 3)) == WHOLE
    assert str(WHOLE.name) == "step-000000000120-000003"
    assert Name.parse(str(WHOLE.name)) == WHOLE.name


@pytest.mark.parametrize(
    "folder", ["attempts", "step-12-3", "step-000000000120-000003.partial", "step-00000000012x-000003", ""]
)
def test_other_folders_are_no_checkpoints(folder: str) -> None:
    assert Name.parse(folder) is None


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(WHOLE.text()), **fields})


def resigned(drop: str = "", **fields: Any) -> str:
    """By somebody who knows how the checksum is made."""
    content = {**json.loads(WHOLE.text()), **fields}
    content = {name: value for name, value in content.items() if name not in {"sha256", drop}}
    return json.dumps({**content, "sha256": digest(content)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON of this library"),
        ("[]", "not valid JSON of this library"),
        ("[" * 100_000, "not valid JSON of this library"),
        ("{}", "not valid JSON of this library"),
        (WHOLE.text()[:-30], "not valid JSON of this library"),
        (b"\xff\xfe\x00", "not valid JSON of this library"),
        (changed(step=121), "changed after it was written"),
        (changed(more=1), "changed after it was written"),
        (resigned(format=2), "a later one has written it"),
        (resigned(more=1), "lacks a field, or has one that is not known"),
        (resigned(drop="world_size"), "lacks a field"),
        (resigned(files=[1]), "lacks a field"),
        (resigned(files={"a": {"size": 1}}), "lacks a field"),
        (resigned(step="10"), "lacks a field, or has one that is not known"),
        (resigned(attempt=None), "lacks a field, or has one that is not known"),
        (resigned(step=10**13), "lacks a field, or has one that is not known"),
        (resigned(step=120.0), "has a float in place of the step"),
        (resigned(attempt=True), "has a bool in place of the attempt"),
        (resigned(world_size="4"), "has a str in place of the world_size"),
        (resigned(mesh=None), "has a NoneType in place of the mesh"),
        (resigned(data=[1]), "has a list in place of the data"),
        (resigned(metrics=None), "has a NoneType in place of the metrics"),
        (resigned(time="now"), "has a str in place of the time"),
        (resigned(step=121), "is of step-000000000121-000003: the folder was copied or renamed"),
    ],
)
def test_what_is_not_whole_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        Manifest.parse(text, WHOLE.name)


def test_each_byte_of_it_counts() -> None:
    text = WHOLE.text().encode()
    for at in range(len(text)):
        flipped = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        try:
            read = Manifest.parse(flipped, WHOLE.name)
        except CorruptCheckpointError:
            continue
        assert read == WHOLE, "blanks between words may differ"


@pytest.mark.parametrize(("step", "attempt"), [(-1, 1), (10**12, 1), (1, -1), (1, 10**6)])
def test_numbers_that_fit_no_folder(step: int, attempt: int) -> None:
    with pytest.raises(ValueError, match="must be from 0 to"):
        Name(step, attempt)
