import pytest
from hypothesis import given, strategies as st

from trainyard_torch.mesh import Parallelism

SIZE = st.integers(1, 6)


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_every_process_has_its_place(tensor: int, pipeline: int, context: int, replicate: int, shards: int) -> None:
    sizes = Parallelism(tensor, pipeline, context, replicate)
    world_size = tensor * pipeline * context * replicate * shards
    assert sizes.data(world_size) == replicate * shards
    assert sizes.shape(world_size) == (pipeline, replicate, shards, context, tensor)


@pytest.mark.parametrize(
    ("sizes", "world_size", "words"),
    [
        (Parallelism(tensor=2, pipeline=2), 6, "6 processes cannot be laid out .* a multiple of 4"),
        (Parallelism(context=4), 2, "2 processes cannot be laid out .* a multiple of 4"),
        (Parallelism(tensor=2, replicate=2), 6, "replicate must divide 3"),
        (Parallelism(), 0, "world_size must be from 1 on"),
    ],
)
def test_worlds_that_do_not_fit(sizes: Parallelism, world_size: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sizes.data(world_size)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (None, Parallelism()),
        ("", Parallelism()),
        ("{}", Parallelism()),
        ('{"tensor":8,"pipeline":2,"context":1}', Parallelism(tensor=8, pipeline=2)),
        ('{"replicate": 2}', Parallelism(replicate=2)),
    ],
)
def test_the_variable(text: str | None, sizes: Parallelism) -> None:
    assert Parallelism.parse(text) == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensor=2", "is not JSON"),
        ("[2]", "must be a JSON object"),
        ('{"tensors": 2}', "has tensors, and may have tensor, pipeline, context, replicate only"),
        ('{"tensor": 2, "tensor": 4}', "a key twice"),
        ('{"tensor": 0}', "tensor must be a positive integer, not 0"),
        ('{"tensor": 2.0}', "tensor must be .*not 2.0"),
        ('{"context": "2"}', "context must be .*not '2'"),
        ('{"pipeline": true}', "pipeline must be .*not True"),
        ('{"pipeline": null}', "pipeline must be .*not None"),
    ],
)
def test_a_variable_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Parallelism.parse(text)
