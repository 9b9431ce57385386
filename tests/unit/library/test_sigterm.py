"""How long a process that is asked to end has for its step."""

import pytest

from trainyard_torch.sigterm import default_stop_timeout_seconds


@pytest.mark.parametrize(("text", "seconds"), [(None, 20), ("", 20), ("30", 20), ("600", 400), ("0", 0), ("4.5", 3)])
def test_two_thirds_of_what_the_pod_gets(text: str | None, seconds: float) -> None:
    environ = {} if text is None else {"TRAINYARD_GRACE_PERIOD_SECONDS": text}
    assert default_stop_timeout_seconds(environ) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf", "1e10"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=f"TRAINYARD_GRACE_PERIOD_SECONDS must be the seconds .* got '{text}'"):
        default_stop_timeout_seconds({"TRAINYARD_GRACE_PERIOD_SECONDS": text})
