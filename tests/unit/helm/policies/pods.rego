# Pods as the `restricted` pod security standard wants them, with images that nobody can change.
package main

import rego.v1

pods contains pod if {
	input.kind == "Pod"
	pod := input.spec
}

pods contains pod if {
	input.kind in {"Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job"}
	pod := input.spec.template.spec
}

pods contains pod if {
	input.kind == "CronJob"
	pod := input.spec.jobTemplate.spec.template.spec
}

containers contains [pod, container] if {
	some pod in pods
	some kind in ["containers", "initContainers", "ephemeralContainers"]
	some container in object.get(pod, kind, [])
}

named := sprintf("%s %s", [input.kind, input.metadata.name])

# What a container says goes before what its pod says.
in_force(pod, container, field) := object.get(container, ["securityContext", field], object.get(pod, ["securityContext", field], null))

deny contains sprintf("%s: %s is the node's", [named, field]) if {
	some pod in pods
	some field in ["hostNetwork", "hostPID", "hostIPC"]
	pod[field]
}

allowed_volumes := {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"}

deny contains sprintf("%s: volume %s is a %s", [named, volume.name, kind]) if {
	some pod in pods
	some volume in object.get(pod, "volumes", [])
	some kind in object.keys(volume) - {"name"}
	not kind in allowed_volumes
}

deny contains sprintf("%s: every container has the account's token", [named]) if {
	some pod in pods
	object.get(pod, "automountServiceAccountToken", true)
}

deny contains sprintf("%s: container %s may be root", [named, container.name]) if {
	some [pod, container] in containers
	not in_force(pod, container, "runAsNonRoot") == true
}

deny contains sprintf("%s: container %s is root", [named, container.name]) if {
	some [pod, container] in containers
	in_force(pod, container, "runAsUser") == 0
}

deny contains sprintf("%s: container %s has no seccomp profile", [named, container.name]) if {
	some [pod, container] in containers
	profile := in_force(pod, container, "seccompProfile")
	not object.get(profile, "type", "") in {"RuntimeDefault", "Localhost"}
}

deny contains sprintf("%s: container %s has no seccomp profile", [named, container.name]) if {
	some [pod, container] in containers
	in_force(pod, container, "seccompProfile") == null
}

deny contains sprintf("%s: container %s may gain privileges", [named, container.name]) if {
	some [_, container] in containers
	object.get(container, ["securityContext", "allowPrivilegeEscalation"], true)
}

deny contains sprintf("%s: container %s is privileged", [named, container.name]) if {
	some [_, container] in containers
	object.get(container, ["securityContext", "privileged"], false)
}

deny contains sprintf("%s: container %s can write to its image", [named, container.name]) if {
	some [_, container] in containers
	not object.get(container, ["securityContext", "readOnlyRootFilesystem"], false)
}

deny contains sprintf("%s: container %s keeps capabilities", [named, container.name]) if {
	some [_, container] in containers
	not "ALL" in object.get(container, ["securityContext", "capabilities", "drop"], [])
}

deny contains sprintf("%s: container %s adds capability %s", [named, container.name, added]) if {
	some [_, container] in containers
	some added in object.get(container, ["securityContext", "capabilities", "add"], [])
}

deny contains sprintf("%s: container %s takes a port of the node", [named, container.name]) if {
	some [_, container] in containers
	some port in object.get(container, "ports", [])
	object.get(port, "hostPort", 0) != 0
}

deny contains sprintf("%s: container %s has no limit of %s", [named, container.name, resource]) if {
	some [_, container] in containers
	some resource in ["cpu", "memory", "ephemeral-storage"]
	not object.get(container, ["resources", "limits", resource], false)
}

deny contains sprintf("%s: image %s of container %s has no digest", [named, container.image, container.name]) if {
	some [_, container] in containers
	not regex.match(`@sha256:[0-9a-f]{64}$`, container.image)
}
