{{- /* Name of the resources: that of the release, with the chart's name if it does not contain it. */ -}}
{{- define "tpuserve.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains "tpuserve" .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-tpuserve" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* The image of the server. Images for TPUs have the suffix -tpu. */ -}}
{{- define "tpuserve.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-tpu" "" .Values.tpu.enabled)) }}
{{- end -}}
{{- end }}

{{- /* The query for the demand on all servers of the release. */ -}}
{{- define "tpuserve.demand" -}}
{{- if .Values.autoscaling.query -}}
{{ .Values.autoscaling.query }}
{{- else -}}
sum(pod:tpuserve_demand_ratio{namespace="{{ .Release.Namespace }}", pod=~"{{ include "tpuserve.fullname" . }}-[^-]+-[^-]+"})
{{- end -}}
{{- end }}

{{- /* The largest number of servers. The schema cannot compare two values. */ -}}
{{- define "tpuserve.maxReplicas" -}}
{{- with .Values.replicas -}}
{{- if lt (int .max) (int .min) -}}
{{- fail (printf "replicas.max is %d and replicas.min is %d. Set replicas.max to at least replicas.min." (int .max) (int .min)) -}}
{{- end -}}
{{ .max }}
{{- end -}}
{{- end }}

{{- /* The scenario of the load test. Its Job has neither TLS nor a key. */ -}}
{{- define "tpuserve.scenario" -}}
{{- if or .Values.tls.secretName .Values.credentials.secretName -}}
{{- fail "loadtest.scenario calls the servers without TLS and without a key. Remove it, and run the Kustomize component loadtest with patches for the addresses, the authority and the key." -}}
{{- end -}}
{{ toYaml .Values.loadtest.scenario }}
{{- end }}
