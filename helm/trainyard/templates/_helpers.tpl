{{/*
The name of the operator and the prefix of all other names. 44 characters leave room for what a Deployment adds to its pods' names.
A release may have dots in its name, a Service and the operator's Lease may not.
*/}}
{{- define "trainyard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- $full | replace "." "-" | trunc 44 | trimAll "-" -}}
{{- end -}}

{{/* Whoever may make pods in a namespace has the rights of its account `default`. */}}
{{- define "trainyard.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "trainyard.fullname" .) "default" -}}
{{- $account := default $own .Values.serviceAccount.name -}}
{{- if and (eq $account "default") (or .Values.watchNamespaces .Values.admission.guardServiceAccounts) -}}
{{- fail "serviceAccount: the operator's rights would go to the account `default`, which every pod of its namespace has: set serviceAccount.name to one of its own, or serviceAccount.create" -}}
{{- end -}}
{{- $account -}}
{{- end -}}

{{/* What a Deployment's selector holds can never change, so it stands apart from the other labels. */}}
{{- define "trainyard.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* The chart's own labels come last: in a merge they win over commonLabels. */}}
{{- define "trainyard.labels" -}}
{{- $own := include "trainyard.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- mergeOverwrite (deepCopy (default dict .Values.commonLabels)) $own | toYaml -}}
{{- end -}}

{{/* None that the operator's own Service, budget or policy would take for an operator. */}}
{{- define "trainyard.helmTestLabels" -}}
app.kubernetes.io/name: {{ include "trainyard.fullname" . }}-helm-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: helm-test
{{- end -}}

{{- define "trainyard.coordinatorHost" -}}
{{- printf "%s-coordinator.%s.svc" (include "trainyard.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "trainyard.coordinatorSecret" -}}
{{- with .Values.coordinator.tls -}}
{{- if and .existingSecret .certManager.enabled -}}
{{- fail "coordinator.tls: existingSecret and certManager.enabled exclude each other: leave one of them out" -}}
{{- end -}}
{{- /* cert-manager's has a name of its own: Helm takes over no Secret that it has not made. */ -}}
{{- $own := .certManager.enabled | ternary "coordinator-cert-manager-tls" "coordinator-tls" -}}
{{- default (printf "%s-%s" (include "trainyard.fullname" $) $own) .existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "trainyard.replicas" -}}
{{- if and (gt (int64 .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail (printf "replicas: %d operators without an election would all act on the same jobs: set 1, or leaderElection.enabled" (int64 .Values.replicas)) -}}
{{- end -}}
{{- .Values.replicas | int64 -}}
{{- end -}}

{{/* What the operator may do in the namespaces that it looks after. No secrets, no wildcard, no exec, nothing on nodes, roles or service accounts. */}}
{{- define "trainyard.rules" -}}
# get: after a conflict. delete: ttlSecondsAfterFinished. The spec is the user's: it is never written.
- apiGroups: [trainyard.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/status]
  verbs: [update]
# Owner references with blockOwnerDeletion ask for this where the OwnerReferencesPermissionEnforcement admission plugin is on
# (OpenShift). No finalizer is ever set.
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# The headless Service of a job. It is deleted through its owner reference, not by the operator.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create]
{{- if .Values.networkPolicy.jobs.enabled }}
# get: one that was made before is looked at, whose it is. It is deleted through its owner reference too.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create]
{{- end }}
# A repeated event is counted up, not posted anew: patch; get, for the count of one that an earlier process wrote.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

{{- define "trainyard.image" -}}
{{- if eq .Values.image.tag "latest" -}}
{{- fail "image.tag: \"latest\" names no version, so a restart could change the operator: set a version, or image.digest" -}}
{{- end -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of two variables of one name the last would win, without a word. */}}
{{- define "trainyard.extraEnv" -}}
{{- $settings := list "TRAINYARD_INSTANCE" "TRAINYARD_POD_UID" "TRAINYARD_LOG_LEVEL" "TRAINYARD_WORKERS" "TRAINYARD_API_QPS" "TRAINYARD_API_BURST" "TRAINYARD_HTTP_PORT" -}}
{{- $settings = concat $settings (list "TRAINYARD_LEADER_ELECTION" "TRAINYARD_LEASE_NAME" "TRAINYARD_LEASE_SECONDS" "TRAINYARD_NAMESPACES") -}}
{{- $settings = concat $settings (list "TRAINYARD_AGENT_IMAGE" "TRAINYARD_AGENT_IMAGE_VOLUME" "TRAINYARD_COORDINATOR_URL" "TRAINYARD_COORDINATOR_PORT" "TRAINYARD_ISOLATE_JOBS" "TRAINYARD_JOB_PEERS") -}}
{{- $named := list -}}
{{- range .Values.extraEnv -}}
{{- if has .name $settings -}}
{{- fail (printf "extraEnv: %s is set by the chart itself: use the value that it is made of" .name) -}}
{{- end -}}
{{- if has .name $named -}}
{{- fail (printf "extraEnv: %s stands there twice: leave one of them out" .name) -}}
{{- end -}}
{{- if and (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv: %s has value and valueFrom: leave one of them out" .name) -}}
{{- end -}}
{{- $named = append $named .name -}}
{{- end -}}
{{- with .Values.extraEnv -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* What the kubelet would mount by itself for an account; asked for by the one container that uses it. */}}
{{- define "trainyard.apiAccess" -}}
- name: api-access
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{- define "trainyard.apiAccessMount" -}}
- name: api-access
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{/* Of `networkPolicy`: nothing but the API server, and nothing to ask DNS for: kubelets tell pods its address. */}}
{{- define "trainyard.toApiServer" -}}
- ports:
    {{- range .apiServer.ports }}
    - {port: {{ int64 . }}, protocol: TCP}
    {{- end }}
  {{- with .apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}
