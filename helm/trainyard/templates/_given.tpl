{{/* Checks between the fields of values of Kubernetes' own types, which a schema cannot express. */}}

{{/* A quantity as a number. Both sides of a comparison are rounded alike; the API server decides what is too close. */}}
{{- define "trainyard.number" -}}
{{- if kindIs "string" . -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- mulf (trimSuffix $unit . | float64) (get $units $unit | float64) -}}
{{- else -}}
{{- float64 . -}}
{{- end -}}
{{- end -}}

{{- define "trainyard.resources" -}}
{{- $limits := default dict .Values.resources.limits -}}
{{- range $name, $asked := .Values.resources.requests -}}
{{- if hasKey $limits $name -}}
{{- $limit := get $limits $name -}}
{{- if gt (include "trainyard.number" $asked | float64) (mulf 1.000000001 (include "trainyard.number" $limit | float64)) -}}
{{- fail (printf "resources: a request of %v %s is more than the limit of %v: raise resources.limits.%s too" $asked $name $limit $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml .Values.resources -}}
{{- end -}}

{{- define "trainyard.tolerations" -}}
{{- range .Values.tolerations -}}
{{- $operator := default "Equal" .operator -}}
{{- if and (not .key) (ne $operator "Exists") -}}
{{- fail "tolerations: one without a key tolerates every taint: add operator: Exists, or set the key" -}}
{{- end -}}
{{- if and (eq $operator "Exists") .value -}}
{{- fail (printf "tolerations: operator Exists takes no value, and %s has %q: remove one of them" (default "one" .key) .value) -}}
{{- end -}}
{{- if and (hasKey . "tolerationSeconds") (ne (default "" .effect) "NoExecute") -}}
{{- fail "tolerations: tolerationSeconds needs effect: NoExecute: set it, or remove tolerationSeconds" -}}
{{- end -}}
{{- end -}}
{{- with .Values.tolerations -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* A constraint without a selector gets that of the operator's pods; Kubernetes would select no pod. */}}
{{- define "trainyard.spread" -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "trainyard.selectorLabels" . | fromYaml)) -}}
{{- $spread := list -}}
{{- $named := list -}}
{{- range .Values.topologySpreadConstraints -}}
{{- if and (hasKey . "minDomains") (ne .whenUnsatisfiable "DoNotSchedule") -}}
{{- fail "topologySpreadConstraints: minDomains needs whenUnsatisfiable: DoNotSchedule: set it, or remove minDomains" -}}
{{- end -}}
{{- $name := printf "%s with %s" .topologyKey .whenUnsatisfiable -}}
{{- if has $name $named -}}
{{- fail (printf "topologySpreadConstraints: %s is there twice: remove one of them" $name) -}}
{{- end -}}
{{- $named = append $named $name -}}
{{- $spread = append $spread (hasKey . "labelSelector" | ternary . (merge (deepCopy .) $own)) -}}
{{- end -}}
{{- with $spread -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Prometheus' durations, in milliseconds. */}}
{{- define "trainyard.milliseconds" -}}
{{- $units := dict "y" 31536000000 "w" 604800000 "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit | float64)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* `interval` and `scrapeTimeout` of a monitor. For 0 Prometheus uses its default. Arguments: the monitor's values, and their name. */}}
{{- define "trainyard.scraping" -}}
{{- $interval := include "trainyard.milliseconds" (default "" .values.interval) | float64 -}}
{{- if and $interval (gt (include "trainyard.milliseconds" (default "" .values.scrapeTimeout) | float64) $interval) -}}
{{- fail (printf "%s: scrapeTimeout %s is longer than interval %s, which Prometheus refuses: shorten it" .name .values.scrapeTimeout .values.interval) -}}
{{- end -}}
{{- with .values.interval -}}
interval: {{ . | quote }}
{{ end -}}
{{- with .values.scrapeTimeout -}}
scrapeTimeout: {{ . | quote }}
{{- end -}}
{{- end -}}
