# Nobody reads Secrets but one by its name, nobody gives rights away, and no right is said with a star.
package main

import rego.v1

roles := {"Role", "ClusterRole"}

rules contains rule if {
	input.kind in roles
	some rule in input.rules
}

deny contains sprintf("%s %s: a star", [input.kind, input.metadata.name]) if {
	some rule in rules
	some field in ["apiGroups", "resources", "verbs"]
	"*" in object.get(rule, field, [])
}

powerful := {
	"nodes", "nodes/proxy", "pods/attach", "pods/ephemeralcontainers", "pods/exec", "pods/portforward", "secrets", "serviceaccounts",
	"serviceaccounts/token", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations",
	"validatingwebhookconfigurations", "certificatesigningrequests",
}

deny contains sprintf("%s %s: rights on %s", [input.kind, input.metadata.name, resource]) if {
	some rule in rules
	some resource in object.get(rule, "resources", [])
	resource in powerful
	not one_secret(rule)
}

# The operator's own certificate.
one_secret(rule) if {
	input.kind == "Role"
	rule.resources == ["secrets"]
	count(rule.resourceNames) == 1
	every verb in rule.verbs {
		verb in {"get", "update"}
	}
}

deny contains sprintf("%s %s: the verb %s", [input.kind, input.metadata.name, verb]) if {
	some rule in rules
	some verb in rule.verbs
	verb in {"bind", "escalate", "impersonate", "approve", "sign"}
}

deny contains sprintf("Secret %s: of type %s", [input.metadata.name, object.get(input, "type", "Opaque")]) if {
	input.kind == "Secret"
	object.get(input, "type", "Opaque") != "kubernetes.io/tls"
	some field in ["data", "stringData"]
	count(object.get(input, field, {})) > 0
}

deny contains sprintf("%s %s: variable %s of container %s is a Secret", [input.kind, input.metadata.name, variable.name, container.name]) if {
	some [_, container] in containers
	some variable in object.get(container, "env", [])
	variable.valueFrom.secretKeyRef
}
