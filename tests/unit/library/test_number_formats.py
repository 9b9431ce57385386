import pytest
from hypothesis import given, strategies as st

from trainyard_torch.number_formats import checked, fits_fp8, usual

V100, T4, A100, H100 = (7, 0), (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("name", "device", "capability"),
    [
        ("fp32", "cpu", None),
        ("fp32", "xpu", None),
        ("bf16", "cpu", None),
        ("fp16", "cpu", None),
        ("fp16", "cuda", V100),
        ("bf16", "cuda", A100),
        ("tf32", "cuda", A100),
        ("fp8", "cuda", (8, 9)),
        ("fp8", "cuda", H100),
        ("bf16", "cuda", None),
    ],
)
def test_what_devices_have(name: str, device: str, capability: tuple[int, int] | None) -> None:
    assert checked(name, device, capability) == name


@pytest.mark.parametrize(
    ("name", "device", "capability", "message"),
    [
        ("int4", "cuda", H100, "must be one of fp32, tf32, bf16, fp16, fp8, got 'int4'"),
        ("tf32", "cpu", None, "this device is a CPU: take bf16 or fp32"),
        ("fp8", "cpu", None, "this device is a CPU"),
        ("bf16", "xpu", None, "the device is 'xpu': take fp32"),
        (
            "bf16",
            "cuda",
            V100,
            r"needs compute capability 8.0 \(Ampere\) or later, and this GPU has 7.0: take fp16 or fp32",
        ),
        ("tf32", "cuda", T4, "has 7.5: take fp16 or fp32"),
        ("fp8", "cuda", A100, r"8.9 \(Ada and Hopper\) or later, and this GPU has 8.0: take bf16 or fp16 or fp32"),
        ("fp16", "cuda", (6, 1), "has 6.1: take fp32"),
        ("fp8", "cuda", None, "this one is not: take bf16"),
    ],
)
def test_unsupported_formats_are_reported(
    name: str, device: str, capability: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        checked(name, device, capability)


@given(st.sampled_from(["tf32", "bf16", "fp16", "fp8"]), st.tuples(st.integers(3, 12), st.integers(0, 9)))
def test_newer_device_supports_all_older_formats(name: str, capability: tuple[int, int]) -> None:
    try:
        checked(name, "cuda", capability)
    except ValueError as error:
        # What is offered instead can be had.
        for other in str(error).rsplit("take ", 1)[1].split(" or "):
            assert checked(other, "cuda", capability) == other
    else:
        assert checked(name, "cuda", (capability[0] + 1, 0)) == name


def test_sides_of_16() -> None:
    assert [fits_fp8(16, 64), fits_fp8(10, 64), fits_fp8(64, 10)] == [True, False, False]


@pytest.mark.parametrize(
    ("device", "capability", "name"),
    [("cuda", A100, "tf32"), ("cuda", T4, "fp32"), ("cuda", None, "fp32"), ("cpu", None, "fp32")],
    ids=["Ampere", "Turing", "AMD", "CPU"],
)
def test_what_is_usual_is_had_everywhere(device: str, capability: tuple[int, int] | None, name: str) -> None:
    assert checked(usual(device, capability), device, capability) == name
