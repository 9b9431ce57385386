"""An S3 server on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib import request

import boto3
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

KEYS = {"key": "k", "secret": "s"}


def options(endpoint: str, patience: float = 30) -> dict[str, Any]:
    # No retries for minutes: what is away is away.
    quick = {"retries": {"max_attempts": 0}, "connect_timeout": 5, "read_timeout": patience}
    return {"endpoint_url": endpoint, **KEYS, "config_kwargs": quick, "skip_instance_cache": True}


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        # All servers of a process have the same content.
        request.urlopen(f"{url}/moto-api/reset", data=b"").close()  # noqa: S310 - it is http
        boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
        ).create_bucket(Bucket="bucket")
        yield url
    finally:
        server.stop()
