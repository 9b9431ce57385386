import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_torch.monitoring import trace


def save(export: Callable[[str], object], path: Path) -> None:
    with trace.exported(export, path) as plain:
        trace.pack(plain, path)


def test_a_trace_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "made/for/it" / trace.name(3, 120)
    save(lambda to: Path(to).write_text('{"traceEvents": []\n}'), path)
    assert gzip.decompress(path.read_bytes()) == b'{"traceEvents": []\n}'
    assert [each.name for each in path.parent.iterdir()] == ["trace-rank3-step120.json.gz"]


def torn(to: str, written: str | None) -> None:
    Path(f"{to}.tmp").write_text("as torch does")
    if written is not None:
        Path(to).write_text(written)


@pytest.mark.parametrize("written", ['{"traceEvents": [{"na', "", None])
def test_what_torch_has_not_written_to_its_end(tmp_path: Path, written: str | None) -> None:
    with pytest.raises(OSError, match=r"trace-rank0-step1.json.gz is incomplete: is there space left"):
        save(lambda to: torn(to, written), tmp_path / trace.name(0, 1))
    assert [*tmp_path.iterdir()] == []


def test_partial_write_of_a_killed_rank_is_removed(tmp_path: Path) -> None:
    for left in (f".{trace.name(0, 1)}-x7", f".{trace.name(1, 1)}-x8", f".{trace.name(10, 1)}-x9"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "plain.json").write_text("{")
    (tmp_path / trace.name(0, 1)).touch()
    trace.sweep(tmp_path, 0)
    assert {each.name for each in tmp_path.iterdir()} == {
        trace.name(0, 1),
        f".{trace.name(1, 1)}-x8",
        f".{trace.name(10, 1)}-x9",
    }
