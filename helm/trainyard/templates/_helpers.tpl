{{/*
The name of the operator and the prefix of all other names. At most 44 characters, since a Deployment appends to its pods' names.
The name of a release may have dots, those of a Service and the Lease may not.
*/}}
{{- define "trainyard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- $full | replace "." "-" | trunc 44 | trimAll "-" -}}
{{- end -}}

{{/* Everybody who may create pods in a namespace has the permissions of its account `default`. */}}
{{- define "trainyard.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "trainyard.fullname" .) "default" -}}
{{- $account := default $own .Values.serviceAccount.name -}}
{{- if and (eq $account "default") (or .Values.watchNamespaces .Values.admission.guardServiceAccounts) -}}
{{- fail "serviceAccount: the account `default`, which every pod of its namespace uses, would get the operator's permissions: set serviceAccount.name or serviceAccount.create" -}}
{{- end -}}
{{- $account -}}
{{- end -}}

{{/* Separate from the other labels, since the selector of a Deployment cannot change. */}}
{{- define "trainyard.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* The chart's own labels come last, so that they override commonLabels. */}}
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

{{/*
The Secret of the certificate that the operator issues and renews itself; empty if the certificate has another source.
Its name is not that of the Secret that earlier versions filled: an upgrade would remove the data of that one.
*/}}
{{- define "trainyard.ownCertificate" -}}
{{- if .Values.coordinator.enabled -}}
{{- with .Values.coordinator.tls -}}
{{- if and .existingSecret .certManager.enabled -}}
{{- fail "coordinator.tls: existingSecret and certManager.enabled exclude each other: remove one of them" -}}
{{- end -}}
{{- if not (or .existingSecret .certManager.enabled) -}}
{{- printf "%s-coordinator-cert" (include "trainyard.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret that the operator mounts. Of its own certificate: the one that an earlier version of the chart filled, if it is there. */}}
{{- define "trainyard.coordinatorSecret" -}}
{{- with .Values.coordinator.tls -}}
{{- /* cert-manager's Secret has another name: Helm does not adopt a Secret that it has not created. */ -}}
{{- $name := .certManager.enabled | ternary "coordinator-cert-manager-tls" "coordinator-tls" -}}
{{- default (printf "%s-%s" (include "trainyard.fullname" $) $name) .existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "trainyard.replicas" -}}
{{- if and (gt (int64 .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail (printf "replicas: %d operators without an election would all reconcile the same jobs: set 1, or leaderElection.enabled" (int64 .Values.replicas)) -}}
{{- end -}}
{{- .Values.replicas | int64 -}}
{{- end -}}

{{/* The API groups of the PodGroups that the operator may create, separated by commas; empty: none. */}}
{{- define "trainyard.gangGroups" -}}
{{- $known := dict "native" "scheduling.k8s.io" "volcano" "scheduling.volcano.sh" "coscheduling" "scheduling.x-k8s.io" -}}
{{- $groups := list -}}
{{- range (default dict .Values.gangs).schedulers -}}{{- $groups = append $groups (get $known .) -}}{{- end -}}
{{- join ", " $groups -}}
{{- end -}}

{{/* The operator's permissions in the namespaces that it manages: no Secrets, wildcards, exec, nodes, roles or service accounts. */}}
{{- define "trainyard.rules" -}}
# get: after a conflict. delete: ttlSecondsAfterFinished. The operator never writes the user's spec.
- apiGroups: [trainyard.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/status]
  verbs: [update]
# Owner references with blockOwnerDeletion need this if the OwnerReferencesPermissionEnforcement admission plugin is on
# (OpenShift). No finalizer is ever set.
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]
# patch: to stop the workers of a failed job and keep their logs (activeDeadlineSeconds).
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
# The headless Service of a job. The garbage collector deletes it by its owner reference.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create]
{{- if .Values.networkPolicy.jobs.enabled }}
# get: to check the owner of an existing one. The garbage collector deletes it too.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create]
{{- end }}
{{- if (default dict .Values.kueue).enabled }}
# The Workload of each job in a queue. patch: its queue and its finalizer (Kueue's own), which stays until the pods have ended.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
# patch: to give quota back, to report pods that are ready, and the end of the job.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- with include "trainyard.gangGroups" . }}
# The PodGroup of each group of pods. get: to check the owner of an existing one. deletecollection: they may hold the capacity of a queue.
- apiGroups: [{{ . }}]
  resources: [podgroups]
  verbs: [get, create, deletecollection]
{{- end }}
{{- if (default dict .Values.computeDomains).enabled }}
# get: to check the owner of an existing one. NVIDIA's DRA driver makes the claims of it.
- apiGroups: [resource.nvidia.com]
  resources: [computedomains]
  verbs: [get, create]
{{- end }}
# patch: to raise the count of a repeated event. get: to read the count that an earlier process wrote. list: only the events of a pod
# that does not start name a volume that cannot be mounted.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end -}}

{{- define "trainyard.image" -}}
{{- if eq .Values.image.tag "latest" -}}
{{- fail "image.tag: \"latest\" is no version, so a restart could change the operator: set a version, or image.digest" -}}
{{- end -}}
{{- with .Values.image -}}
{{- $repository := include "trainyard.fromRegistry" (dict "image" .repository "values" $.Values) -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The image of workers' agents. */}}
{{- define "trainyard.agentImage" -}}
{{- with .Values.agent.image -}}
{{- include "trainyard.fromRegistry" (dict "image" . "values" $.Values) -}}
{{- else -}}
{{- include "trainyard.image" . -}}
{{- end -}}
{{- end -}}

{{/* An image in the registry of `global.imageRegistry`, if that is set. As in Docker, a registry has a dot or a port, or is localhost. */}}
{{- define "trainyard.fromRegistry" -}}
{{- $registry := (default dict .values.global).imageRegistry -}}
{{- if $registry -}}
{{- printf "%s/%s" (trimSuffix "/" $registry) (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" .image "") -}}
{{- else -}}
{{- .image -}}
{{- end -}}
{{- end -}}

{{/* The pull secrets of the operator's image: those of the chart and of `global.imagePullSecrets`, which other charts give as names or as `{name: …}`. */}}
{{- define "trainyard.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (default list .Values.imagePullSecrets) (default list (default dict .Values.global).imagePullSecrets) -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $secrets | uniq -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The names of a list of `{name: …}`, separated by commas. */}}
{{- define "trainyard.names" -}}
{{- $names := list -}}
{{- range . -}}{{- $names = append $names .name -}}{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Values of an earlier chart, kept by --reuse-values, have no such port. Two equal ports would keep the operator from starting. */}}
{{- define "trainyard.healthPort" -}}
{{- $port := int64 (default 8081 .Values.settings.healthPort) -}}
{{- if eq $port (int64 .Values.settings.httpPort) -}}
{{- fail (printf "settings.healthPort and settings.httpPort are both %d: use different ports" $port) -}}
{{- end -}}
{{- if and .Values.coordinator.enabled (eq $port (int64 .Values.coordinator.port)) -}}
{{- fail (printf "settings.healthPort and coordinator.port are both %d: use different ports" $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}

{{/* Of two variables with one name the last would silently win. */}}
{{- define "trainyard.extraEnv" -}}
{{- $settings := list "TRAINYARD_INSTANCE" "TRAINYARD_POD_UID" "TRAINYARD_LOG_LEVEL" "TRAINYARD_CONCURRENT_RECONCILES" "TRAINYARD_API_QPS" "TRAINYARD_API_BURST" "TRAINYARD_HTTP_PORT" "TRAINYARD_HEALTH_PORT" -}}
{{- $settings = concat $settings (list "TRAINYARD_LEADER_ELECTION" "TRAINYARD_LEASE_NAME" "TRAINYARD_LEASE_DURATION_SECONDS" "TRAINYARD_NAMESPACES") -}}
{{- $settings = concat $settings (list "TRAINYARD_AGENT_IMAGE" "TRAINYARD_AGENT_IMAGE_VOLUME" "TRAINYARD_COORDINATOR_URL" "TRAINYARD_COORDINATOR_PORT" "TRAINYARD_COORDINATOR_SECRET" "TRAINYARD_ISOLATE_JOBS" "TRAINYARD_JOB_PEERS") -}}
{{- $settings = concat $settings (list "TRAINYARD_AGENT_PULL_SECRETS" "TRAINYARD_ACCELERATORS" "TRAINYARD_WORKER_LABELS" "TRAINYARD_WORKER_ANNOTATIONS" "TRAINYARD_READ_NODES" "TRAINYARD_TOPOLOGY_LABELS" "TRAINYARD_GANG_SCHEDULERS" "TRAINYARD_COSCHEDULING_NAME") -}}
{{- $named := list -}}
{{- range .Values.extraEnv -}}
{{- if has .name $settings -}}
{{- fail (printf "extraEnv: the chart sets %s itself: use its value in the chart" .name) -}}
{{- end -}}
{{- if has .name $named -}}
{{- fail (printf "extraEnv: %s is there twice: remove one of them" .name) -}}
{{- end -}}
{{- if and (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv: %s has value and valueFrom: remove one of them" .name) -}}
{{- end -}}
{{- $named = append $named .name -}}
{{- end -}}
{{- with .Values.extraEnv -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The volume that the kubelet would mount for an account, for the only container that uses it. */}}
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

{{/* Egress of `networkPolicy`: only to the API server. DNS is not needed: kubelets put its address into the environment. */}}
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
