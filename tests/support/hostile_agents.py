"""`python -m tests.support.hostile_agents PORT TOKEN…`: pods with valid tokens that ask for as much work as they can.

Each token's pod has an address of its own. It sends large wrong reports, alternating states, and idle connections,
until its input ends. Print a line once it has begun.
"""

import asyncio
import itertools
import json
import ssl
import sys

import uvloop

from trainyard.api.agent_protocol import MAX_BODY_BYTES, REPORT_PATH, SYNC_PATH

CONNECTIONS = 16
"""Of each kind, for each pod."""
ADDRESS = "127.0.0.{}"
FIRST_ADDRESS = 21
TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


def wrong_report() -> bytes:
    """Return a report of the largest size that was ever allowed, in which each name and each value is wrong."""
    ranks = {f"a{number}": 1 for number in range(40_000)}
    body = json.dumps({"attempt": 1, "ranks": ranks}, separators=(",", ":")).encode()
    assert len(body) < MAX_BODY_BYTES
    return body


def request(path: str, token: str, body: bytes) -> bytes:
    """Return an HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def repeat(port: int, address: str, requests: list[bytes]) -> None:
    """Send these requests again and again, on as few connections as the other end allows; none: only connect."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=TRUSTING, local_addr=(address, 0))
            try:
                for each in itertools.cycle(requests):
                    writer.write(each)
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length:")[2].split()[0])
                    await reader.readexactly(length)
                await reader.read()
            finally:
                writer.close()
        except (OSError, EOFError):
            # At this pace the attacker costs the other end more than itself.
            await asyncio.sleep(0.005)


async def attack(port: int, tokens: list[str]) -> None:
    """Attack until the standard input ends."""
    wrong, tasks = wrong_report(), list[asyncio.Task[None]]()
    for number, token in enumerate(tokens):
        states = [
            json.dumps({"attempt": 1, "state": "ended", "prepared": prepared}).encode() for prepared in (True, False)
        ]
        kinds = [[request(REPORT_PATH, token, wrong)], [request(SYNC_PATH, token, each) for each in states], []]
        address = ADDRESS.format(FIRST_ADDRESS + number)
        tasks += [asyncio.create_task(repeat(port, address, kind)) for kind in kinds for _ in range(CONNECTIONS)]
    sys.stdout.write("attacking\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(attack(int(sys.argv[1]), sys.argv[2:]))
