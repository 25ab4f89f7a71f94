{{- define "walhook.labels" -}}
app.kubernetes.io/name: walhook
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "walhook.selector" -}}
app.kubernetes.io/name: walhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "walhook.secret" -}}
{{ .Values.existingSecret | default .Release.Name }}
{{- end }}

{{- /* The secret settings, each with its key in the Secret and its value in `secrets`. */ -}}
{{- define "walhook.secretSettings" -}}
- { setting: source.url, key: source-url, value: sourceUrl }
- { setting: store.url, key: store-url, value: storeUrl }
- { setting: source.log_url, key: log-url, value: logUrl }
- { setting: secrets.master_key, key: master-key, value: masterKey }
- { setting: mail.smtp_url, key: smtp-url, value: smtpUrl }
- { setting: delivery.proxy, key: proxy-url, value: proxyUrl }
- { setting: auth.jwt.secret, key: jwt-secret, value: jwtSecret }
- { setting: tracing.headers, key: tracing-headers, value: tracingHeaders }
{{- end }}

{{- /* The keys of the Secret. */ -}}
{{- define "walhook.secretKeys" -}}
{{- $keys := list }}
{{- if .Values.existingSecret }}
{{- $keys = .Values.existingSecretKeys }}
{{- else }}
{{- range fromYamlArray (include "walhook.secretSettings" .) }}
{{- if index $.Values.secrets .value }}{{ $keys = append $keys .key }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml $keys }}
{{- end }}

{{- /* A value as TOML, which equals JSON except for objects. Helm's toToml would write integers as floats. */ -}}
{{- define "walhook.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ toJson $key }} = {{ include "walhook.toml" (index $ $key) }}{{ end -}} }
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "walhook.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  {{- $keys := fromYamlArray (include "walhook.secretKeys" .) }}
  {{- range fromYamlArray (include "walhook.secretSettings" .) }}
  {{- if has .key $keys }}
  - { name: WALHOOK_{{ .setting | replace "." "__" | upper }}_FILE, value: /run/secrets/walhook/{{ .key }} }
  {{- end }}
  {{- end }}
  - { name: WALHOOK_HTTP__LISTEN, value: "0.0.0.0:8080" }
  - { name: WALHOOK_HTTP__METRICS_LISTEN, value: "0.0.0.0:9464" }
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - { name: settings, mountPath: /etc/walhook, readOnly: true }
  - { name: secrets, mountPath: /run/secrets/walhook, readOnly: true }
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}
