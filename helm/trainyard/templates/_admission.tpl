{{/* The names of admission policies belong to the whole cluster: releases for some namespaces, which do not have to be alone, add their own. */}}
{{- define "trainyard.policyName" -}}
{{- if .Values.watchNamespaces }}{{ .Release.Namespace }}-{{ end }}{{ include "trainyard.fullname" . -}}
{{- end -}}

{{- define "trainyard.operatorAccount" -}}
{{- printf "'system:serviceaccount:%s:%s'" .Release.Namespace (include "trainyard.serviceAccountName" .) -}}
{{- end -}}

{{/* Stopping or shrinking a job, and changes that create no pods, need no permission for its template. Neither does deletion. */}}
{{- define "trainyard.asksForPods" -}}
- name: asks-for-pods
  expression: >-
    oldObject == null || object.spec.template != oldObject.spec.template || object.spec.replicas > oldObject.spec.replicas
    || (!object.spec.lifecycle.suspend && oldObject.spec.lifecycle.suspend)
    || has(object.spec.roles) != has(oldObject.spec.roles)
    || (has(object.spec.roles) && object.spec.roles != oldObject.spec.roles)
    || has(object.spec.network) != has(oldObject.spec.network)
    || (has(object.spec.network) && object.spec.network != oldObject.spec.network)
    || has(object.spec.managedBy) != has(oldObject.spec.managedBy)
    || (has(object.spec.managedBy) && object.spec.managedBy != oldObject.spec.managedBy)
{{- end -}}

{{/*
A binding of a policy: `name`, `root`, `watched` (only in the namespaces of `watchNamespaces`, if there are any), and `exempt` (not in
namespaces whose label says that an administrator wants no pod security there).
*/}}
{{- define "trainyard.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name | quote }}
  labels:
    {{- include "trainyard.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name | quote }}
  validationActions: [Deny]
  {{- $watched := ternary .root.Values.watchNamespaces list .watched }}
  {{- if or $watched .exempt }}
  matchResources:
    namespaceSelector:
      matchExpressions:
        {{- with $watched }}
        - key: kubernetes.io/metadata.name
          operator: In
          values:
            {{- toYaml . | nindent 12 }}
        {{- end }}
        {{- if .exempt }}
        - key: pod-security.kubernetes.io/enforce
          operator: NotIn
          values: [privileged]
        {{- end }}
  {{- end }}
{{- end -}}

{{/*
What the rules of files/pod-security.yaml read, of the pod template or pod at the CEL expression `.`. Of a pod template, roles of the job
add volumes; nothing else of a role is restricted.
*/}}
{{- define "trainyard.podSecurityVariables" -}}
- {name: pod, expression: {{ . }}.spec}
- name: annotations
  expression: >-
    has({{ . }}.metadata) && has({{ . }}.metadata.annotations) ? {{ . }}.metadata.annotations : {}
- name: containers
  expression: >-
    variables.pod.containers + (has(variables.pod.initContainers) ? variables.pod.initContainers : [])
# Lists of volumes: of the pod, and of each role.
- name: volumes
  expression: >-
    [has(variables.pod.volumes) ? variables.pod.volumes : []]
    {{- if eq . "object.spec.template" }}
    + (has(object.spec.roles) ? object.spec.roles.map(role, has(role.volumes) ? role.volumes : []) : [])
    {{- end }}
# The security contexts of the pod and its containers.
- name: contexts
  expression: >-
    (has(variables.pod.securityContext) ? [variables.pod.securityContext] : [])
    + variables.containers.filter(c, has(c.securityContext)).map(c, c.securityContext)
# Actions of the kubelet for containers: it connects to an address, or runs a command.
- name: handlers
  expression: >-
    variables.containers.filter(c, has(c.livenessProbe)).map(c, c.livenessProbe)
    + variables.containers.filter(c, has(c.readinessProbe)).map(c, c.readinessProbe)
    + variables.containers.filter(c, has(c.startupProbe)).map(c, c.startupProbe)
    + variables.containers.filter(c, has(c.lifecycle) && has(c.lifecycle.postStart)).map(c, c.lifecycle.postStart)
    + variables.containers.filter(c, has(c.lifecycle) && has(c.lifecycle.preStop)).map(c, c.lifecycle.preStop)
{{- end -}}

{{- define "trainyard.podSecurityRules" -}}
{{- $standards := .Files.Get "files/pod-security.yaml" | fromYaml -}}
{{- toYaml $standards.baseline }}
{{- if eq .Values.admission.podSecurity "restricted" }}
{{ toYaml $standards.restricted }}
{{- end }}
{{- end -}}
