"""The record of one program: what else is in its place is ignored."""

import os
import threading
from pathlib import Path

import pytest

from trainyard_agent.rank_record_file import RankRecord, read_record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"rank": 0}',
        '{"rank": 0, "isRank": true, "owner": []}',
        '{"rank": 0, "isRank": true, "owner": 7, "at": 1' + 400 * "0" + "}",
    ],
)
def test_malformed_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "7").write_text(text)
    assert read_record(tmp_path / "7", 7) is None


def test_pipe_in_place_of_a_record_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7")
    done: list[RankRecord | None] = []
    reading = threading.Thread(target=lambda: done.append(read_record(tmp_path / "7", 7)), daemon=True)
    reading.start()
    reading.join(5)
    assert done == [None]


def test_link_to_a_record_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "8").write_text('{"rank": 0, "isRank": true, "owner": 8}')
    (tmp_path / "7").symlink_to(tmp_path / "8")
    assert read_record(tmp_path / "8", 8) is not None
    assert read_record(tmp_path / "7", 7) is None
