"""The requests about the PodGroups of a job. Decides nothing; each may be repeated without harm."""

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from trainyard.api.constants import LABEL_JOB_UID
from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler
from trainyard.controller.reconcile.gang_discovery import GangDiscovery
from trainyard.domain.state.snapshot import JobView
from trainyard.frameworks.manifests import metadata_of_the_job
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.scheduling.pod_group import pod_group_name, pod_group_spec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodGroups:
    """The PodGroups of the cluster's gang schedulers."""

    writer: Writer
    discovery: GangDiscovery

    def manifest(self, job: JobView, group: PodGroup) -> dict[str, Any]:
        """Return the PodGroup of the job's current pods."""
        resource = self.discovery.resource(group.scheduler)
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata_of_the_job(job, pod_group_name(job, group)),
            "spec": pod_group_spec(job, group),
        }

    async def delete_all(self, job: JobView, scheduler: GangScheduler) -> None:
        """Delete all PodGroups of the job. A refusal is only logged: they are deleted with the job at the latest."""
        resource = self.discovery.resource(scheduler)
        try:
            await self.writer.delete_all(resource, job.namespace, f"{LABEL_JOB_UID}={job.uid}")
        except ApiError as error:
            if error.status not in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
                raise
            _LOG.warning(f"cannot delete the PodGroups of the job kind={resource.qualified}: {error}")
