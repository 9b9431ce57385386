import pytest

from dev.localcluster import inside


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--requirements", "/no/such.txt", "trainer", "true"], "there is no file /no/such.txt"),
        (["trainer"], "there is no command"),
        (["pause", "true"], "invalid choice: 'pause'"),
    ],
)
def test_what_it_refuses_before_anything_is_built(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        inside.main(words)
    assert message in capsys.readouterr().err
