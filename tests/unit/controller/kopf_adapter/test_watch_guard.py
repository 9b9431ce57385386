"""The middleware between kopf and the API server."""

from tests.support.fake_api import FakeApi
from tests.unit.controller.kubelet import Lab
from trainyard.controller.kopf_adapter.watch_guard import guard
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.resource import PODS
from trainyard.kube.session import Endpoint


async def test_new_list_of_jobs_calls_back_once(api: FakeApi) -> None:
    for name in ("one", "two"):
        Lab(api).submit(name)
    listed: list[str] = []
    path = TRAINING_JOBS.path("lab")
    async with Endpoint(server=api.url).open_client(guard(PermissionTracker(), listed.append)) as client:
        async with client.get(api.url + path, params={"limit": "1"}) as first:
            token = (await first.json())["metadata"]["continue"]
        async with client.get(api.url + path, params={"limit": "1", "continue": token}) as second:
            assert len((await second.json())["items"]) == 1
        async with client.get(api.url + PODS.path("lab")) as pods:
            assert pods.ok
    assert listed == [path]
