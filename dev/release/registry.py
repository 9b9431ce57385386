"""A registry on loopback that lives as long as the command, and the question whether a registry answers at all."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.localcluster.tools import ensure
from dev.release.commands import ReleaseError

PATH = "trainyard"
START_SECONDS = 15.0
ANSWER_SECONDS = 10.0


def require_reachable(host: str, *, plain_http: bool) -> None:
    """It answers as a registry does, be it that one must log in.

    Raises:
        ReleaseError: it does not.
    """
    address = f"{'http' if plain_http else 'https'}://{host}/v2/"
    # No proxy reaches this machine's own loopback.
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if plain_http else []))
    try:
        opener.open(address, timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError as error:
        with error:
            if error.code not in {401, 403}:
                raise ReleaseError(f"{address} answers {error.code}: is {host} a registry?") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ReleaseError(f"the registry {host} cannot be reached ({reason}): see --registry") from error


@contextmanager
def serving(folder: Path, *, empty: bool) -> Iterator[str]:
    """Run a registry that stores its content in the folder, and yield HOST/PATH for pushes.

    Args:
        folder: kept afterwards.
        empty: delete its content first.

    Raises:
        ReleaseError: it does not start.
    """
    if empty:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "registry.json"
    address = _address(settings)
    settings.write_text(json.dumps(configuration(folder / "content", address), indent=2))
    log = folder / "registry.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [ensure("registry")["registry"], "serve", settings],  # JSON is YAML
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        _await(address, process, log)
        yield f"{address}/{PATH}"
    finally:
        process.terminate()
        process.wait()


def configuration(content: Path, address: str) -> dict[str, object]:
    """The registry's settings."""
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(content)}},
        "http": {"addr": address},
    }


def _address(settings: Path) -> str:
    """As last time, so that references stay the same; else a port that is free."""
    if settings.exists():
        return str(json.loads(settings.read_text())["http"]["addr"])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            require_reachable(address, plain_http=True)
        except ReleaseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
    raise ReleaseError(f"the local registry did not start on {address}: {log} says why")
