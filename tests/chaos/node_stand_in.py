"""Acts as scheduler and nodes: does what a scenario says, and ends pods that were deleted."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any, Self

from tests.chaos.admin_client import MERGE, PODS, AdminClient, AnswerError
from tests.chaos.history import History, Step, live

Json = dict[str, Any]


class NodeStandIn:
    """The nodes. A deleted pod terminates at once, like a program that obeys SIGTERM."""

    def __init__(self, client: AdminClient, history: History) -> None:
        self._client = client
        self._leaving: asyncio.Queue[Json] = asyncio.Queue()
        self._asked: set[str] = set()
        history.listeners.append(self._on_step)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._end_the_deleted(), name="nodes")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def bind(self, name: str) -> None:
        """Bind the pod to a node."""
        node = {"apiVersion": "v1", "kind": "Node", "name": f"node-{name.rsplit('-', 2)[1]}"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": node}
        try:
            await self._client.call("POST", f"{PODS}/{name}/binding", binding)
        except AnswerError as error:
            if error.status != 409:  # bound already: the answer to an earlier try was lost
                raise

    async def run(self, name: str) -> None:
        """Report that the containers run."""
        await self._report_status(name, "Running", {"running": {"startedAt": now()}}, ready=True)

    async def end(self, name: str, code: int, message: str = "", uid: str | None = None) -> None:
        """Report that the main container has exited; only of the pod with this UID, where one is given."""
        reason = "Error" if code else "Completed"
        ended = {"exitCode": code, "reason": reason, "message": message, "startedAt": now(), "finishedAt": now()}
        await self._report_status(name, "Failed" if code else "Succeeded", {"terminated": ended}, ready=False, uid=uid)

    async def _report_status(self, name: str, phase: str, state: Json, *, ready: bool, uid: str | None = None) -> None:
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()},
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now()},
        ]
        container = {"name": "main", "image": "trainer:1", "imageID": "", "restartCount": 0, "ready": ready}
        containers = [{**container, "state": state}]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
        # A pod of the same name may have been created meanwhile: the server rejects a patch with the first one's UID.
        whose = {} if uid is None else {"metadata": {"uid": uid}}
        await self._client.call("PATCH", f"{PODS}/{name}/status", {**whose, "status": status}, MERGE)

    def _on_step(self, step: Step) -> None:
        pod = step.new
        if step.kind == "pod" and pod is not None and "deletionTimestamp" in pod["metadata"]:
            uid = pod["metadata"]["uid"]
            if uid not in self._asked:
                self._asked.add(uid)
                self._leaving.put_nowait(pod)

    async def _end_the_deleted(self) -> None:
        while True:
            pod = await self._leaving.get()
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            with contextlib.suppress(AnswerError):
                if live(pod):
                    await self.end(name, 143, uid=uid)
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            await self._client.gone(f"{PODS}/{name}", {**options, "preconditions": {"uid": uid}})


def now() -> str:
    """Return the time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
