"""A checkpoint that somebody has written to attack a worker: nothing of it runs, whatever its checksums say."""

import hashlib
import io
import json
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from typing_extensions import override

from tests.library.support.models import built
from trainyard_torch import CheckpointError, Checkpoints, NoUsableCheckpointError, TrainState, load_weights
from trainyard_torch.checkpoint.dcp_metadata import MetadataError, parsed
from trainyard_torch.checkpoint.manifest import NAME, CorruptCheckpointError, File, Manifest, Name
from trainyard_torch.checkpoint.plain_values import UnsafeTorchError, UnsafeValueError, check_torch
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.timeouts import CHUNK

MODEL = "train_state.model.0.weight"
VALUE = "extra.value"


class Attack:
    """An object whose pickle runs a command."""

    def __init__(self, marker: Path) -> None:
        self.command = f"touch {marker}"

    @override
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def saved(folder: Path) -> Path:
    """A checkpoint; its folder."""
    checkpoints = Checkpoints(str(folder / "store"))
    state = {"train_state": TrainState(*built()), "extra": {"value": 3}}
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    return folder / "store" / str(Name(1, 1))


def loaded(checkpoint: Path) -> Any:
    """The metadata of a checkpoint that the test has made."""
    return pickle.loads((checkpoint / ".metadata").read_bytes())  # noqa: S301 - made above


def sign(checkpoint: Path) -> None:
    """Write a manifest that fits the files as they are."""
    manifest = Manifest.parse((checkpoint / NAME).read_text(), Name(1, 1))
    contents = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != NAME}
    files = {name: File(len(each), hashlib.sha256(each).hexdigest()) for name, each in contents.items()}
    (checkpoint / NAME).write_text(manifest.of(files).text())


def load(folder: Path) -> None:
    state = {"train_state": TrainState(*built()), "extra": {"value": 0}}
    Checkpoints(str(folder / "store")).load(state)


def weights(folder: Path) -> None:
    load_weights(built()[0], str(folder / "store"))


def metadata_is_attack(checkpoint: Path, attack: Attack) -> None:
    (checkpoint / ".metadata").write_bytes(pickle.dumps(attack))


def metadata_holds_attack(checkpoint: Path, attack: Attack) -> None:
    metadata = loaded(checkpoint)
    metadata.planner_data = {"a": attack}
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


def replace(checkpoint: Path, attack: Attack, name: str) -> None:
    """Put the attack in the place of an entry of the data file."""
    stream = io.BytesIO()
    torch.save(attack, stream)
    data = checkpoint / "__0_0.distcp"
    begin = data.stat().st_size
    data.write_bytes(data.read_bytes() + stream.getvalue())
    metadata = loaded(checkpoint)
    (info,) = (info for index, info in metadata.storage_data.items() if index.fqn == name)
    info.offset, info.length = begin, len(stream.getvalue())
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


def tensor_is_attack(checkpoint: Path, attack: Attack) -> None:
    replace(checkpoint, attack, MODEL)


def value_is_attack(checkpoint: Path, attack: Attack) -> None:
    replace(checkpoint, attack, VALUE)


@pytest.mark.parametrize(
    ("act", "attacked"),
    [
        (load, metadata_is_attack),
        (load, metadata_holds_attack),
        (load, tensor_is_attack),
        (load, value_is_attack),
        (weights, metadata_is_attack),
        (weights, tensor_is_attack),
    ],
)
def test_code_in_a_checkpoint_does_not_run(
    tmp_path: Path, act: Callable[[Path], None], attacked: Callable[[Path, Attack], None]
) -> None:
    checkpoint, marker = saved(tmp_path), tmp_path / "owned"
    attacked(checkpoint, Attack(marker))
    sign(checkpoint)
    with pytest.raises(CheckpointError, match=r"cannot be loaded into this program"):
        act(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("attacked", "message"),
    [
        (metadata_is_attack, r"\.metadata names posix\.system, which no checkpoint holds"),
        (value_is_attack, r"extra\.value is an object that only code can restore: .*posix\.system"),
    ],
)
def test_error_names_what_was_refused(tmp_path: Path, attacked: Callable[[Path, Attack], None], message: str) -> None:
    checkpoint = saved(tmp_path)
    attacked(checkpoint, Attack(tmp_path / "owned"))
    sign(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_files_outside_the_checkpoint_are_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    (tmp_path / "store" / "other").write_bytes((checkpoint / "__0_0.distcp").read_bytes())
    metadata = loaded(checkpoint)
    for info in metadata.storage_data.values():
        info.relative_path = "../other"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    sign(checkpoint)
    with pytest.raises(CheckpointError, match=r"\.\./other: not in the manifest"):
        load(tmp_path)


def test_manifest_lists_files_of_its_folder_only(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    manifest = Manifest.parse((checkpoint / NAME).read_text(), Name(1, 1))
    for path in ("../other", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0", "\ud800", "a\nWARNING \x1b[31m"):
        with pytest.raises(CorruptCheckpointError, match=r"which is not in the folder"):
            Manifest.parse(manifest.of({path: File(1, "")}).text(), Name(1, 1))


def test_a_link_without_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    found = Store(str(tmp_path)).measure("endless", expected=10)
    assert found is not None
    assert 10 < found.size <= CHUNK


@pytest.mark.parametrize("file", [NAME, "__0_0.distcp", ".metadata"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, file: str) -> None:
    checkpoint = saved(tmp_path)
    (checkpoint / file).unlink()
    os.mkfifo(checkpoint / file)
    with pytest.raises(NoUsableCheckpointError):
        Checkpoints(str(tmp_path / "store")).load({"train_state": TrainState(*built()), "extra": {"value": 0}})


def test_verification_of_a_link_without_end_ends(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    sign(checkpoint)
    (checkpoint / "endless").symlink_to("/dev/zero")
    manifest = Manifest.parse((checkpoint / NAME).read_text(), Name(1, 1))
    (checkpoint / NAME).write_text(manifest.of({**manifest.files, "endless": File(0, "")}).text())
    with pytest.raises(NoUsableCheckpointError, match="endless was changed after it was written"):
        load(tmp_path)


def drop_parts(metadata: Any) -> None:
    metadata.state_dict_metadata[MODEL].chunks.clear()


def shorten_a_part(metadata: Any) -> None:
    (chunk,) = metadata.state_dict_metadata[MODEL].chunks
    chunk.sizes = torch.Size([1, *chunk.sizes[1:]])


def drop_the_place(metadata: Any) -> None:
    (index,) = (each for each in metadata.storage_data if each.fqn == MODEL)
    del metadata.storage_data[index]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_parts, r"has parts of train_state\.model\.0\.weight with 0 values, and the tensor has \d+"),
        (shorten_a_part, r"has parts of train_state\.model\.0\.weight with \d values, and the tensor has \d+"),
        (drop_the_place, r"does not say in which file all parts of train_state\.model\.0\.weight are"),
    ],
)
def test_a_missing_part_is_an_error(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    """torch would leave what the memory had before."""
    checkpoint = saved(tmp_path)
    metadata = loaded(checkpoint)
    change(metadata)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    sign(checkpoint)
    for act in (load, weights):
        with pytest.raises(CheckpointError, match=message):
            act(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "builtins\ngetattr",
        "functools\npartial",
        "os\nsystem",
        "torch\nload",
        "torch.hub\nload",
        "torch.serialization\nload",
        "torch\nTensor",
        "torch.distributed.checkpoint.metadata\nos.system",
        "torch.distributed.checkpoint.metadata\nMetadata.__init__",
        "torch\nSize.__init__",
    ],
)
def test_no_other_name_is_looked_up(name: str) -> None:
    with pytest.raises(MetadataError, match=r"which no checkpoint holds"):
        parsed(io.BytesIO(b"\x80\x04c" + name.encode() + b"\n."), {})


def test_pickle_cannot_change_a_class() -> None:
    place = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
    attributes = pickle.dumps((None, {"fqn": "x"}), 2)[2:-1]
    with pytest.raises(MetadataError):
        parsed(io.BytesIO(b"\x80\x02" + place + attributes + b"b."), {})
    size = b"ctorch\nSize\n"
    with pytest.raises(MetadataError):
        parsed(io.BytesIO(b"\x80\x02" + size + attributes + b"b."), {})


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """A few bytes can ask for gigabytes: then MemoryError is right."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, File]]:
    checkpoint = saved(tmp_path_factory.mktemp("fuzz"))
    files = json.loads((checkpoint / NAME).read_text())["files"]
    return (checkpoint / ".metadata").read_bytes(), {name: File(**each) for name, each in files.items()}


def without_unused(metadata: Any) -> Any:
    """The metadata without what no release of torch reads while it loads."""
    metadata.storage_meta = metadata.version = None
    for entry in metadata.state_dict_metadata.values():
        if isinstance(entry, TensorStorageMetadata):
            entry.properties.strides = None
    return metadata


def test_metadata_is_read_as_torch_reads_it(content: tuple[bytes, dict[str, File]]) -> None:
    found, expected = parsed(io.BytesIO(content[0]), content[1]), pickle.loads(content[0])  # noqa: S301 - made above
    assert found == without_unused(expected)


def test_properties_of_later_releases_are_ignored(content: tuple[bytes, dict[str, File]]) -> None:
    """torch 2.15 adds strides, and a version; this one has neither, or more is added."""
    metadata, before = pickle.loads(content[0]), parsed(io.BytesIO(content[0]), content[1])  # noqa: S301 - made above
    properties: Any = type(metadata.state_dict_metadata["train_state.model.0.weight"].properties)
    now: Callable[[Any], tuple[Any, ...]] = properties.__getstate__

    def later(self: Any) -> tuple[Any, ...]:
        return (*now(self), (1,), "more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(properties, "__getstate__", later)
        metadata.version = "1.0.0"
        changed = pickle.dumps(metadata)
    assert parsed(io.BytesIO(changed), content[1]) == before


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_metadata_is_data_or_an_error(content: tuple[bytes, dict[str, File]], data: st.DataObject) -> None:
    changed = bytearray(content[0])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with memory_limit(2**28):
        try:
            found = parsed(io.BytesIO(bytes(changed)), content[1])
        except MetadataError:
            return
    assert {info.relative_path for info in found.storage_data.values()} <= content[1].keys()


class Opaque:
    """A class of a program."""


def test_saving_refuses_what_cannot_be_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load({})
    with pytest.raises(UnsafeValueError, match=r"extra\.list\.1 is an object that only code can restore: .*Opaque"):
        checkpoints.save(1, {"extra": {"list": [1, Opaque()]}}, wait=True)


def test_usual_values_return_as_they_were(tmp_path: Path) -> None:
    np.random.seed(4)  # noqa: NPY002 - the state that programs have
    weight = torch.nn.Parameter(torch.zeros(1))
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(torch.optim.SGD([weight], lr=0.1), 5)
    extra = {
        "numpy": np.random.get_state(),  # noqa: NPY002 - as above
        "plan": plan.state_dict(),
        "best": np.float64(0.5),
        "size": torch.Size([2]),
        "kind": torch.bfloat16,
        "names": ("a", None, {"b": [1.5]}),
        "flags": {1, 2},
    }
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load({})
    checkpoints.save(1, {"extra": extra}, wait=True)
    blank = {"extra": dict.fromkeys(extra) | {"plan": dict.fromkeys(extra["plan"]), "numpy": None}}
    Checkpoints(str(tmp_path)).load(blank)
    found = blank["extra"]
    np.testing.assert_equal(found.pop("numpy"), extra.pop("numpy"))
    assert found == extra


@pytest.mark.parametrize("version", ["2.5.1", "2.5.1+cu124", "1.13.0"])
def test_torch_with_unsafe_loading_is_refused(version: str) -> None:
    with pytest.raises(UnsafeTorchError, match=r"CVE-2025-32434\): use torch 2\.6 or later"):
        check_torch(version)


def test_torch_from_the_fix_on_is_taken() -> None:
    for version in ("2.6.0+debian", "2.6.0a0+df5bbc09d1.nv24.12", "2.10.0", "3.0.1"):
        check_torch(version)
