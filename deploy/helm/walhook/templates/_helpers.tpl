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

{{- define "walhook.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - { name: WALHOOK_SOURCE__URL_FILE, value: /run/secrets/walhook/source-url }
  - { name: WALHOOK_STORE__URL_FILE, value: /run/secrets/walhook/store-url }
  - { name: WALHOOK_SECRETS__MASTER_KEY_FILE, value: /run/secrets/walhook/master-key }
  - { name: WALHOOK_HTTP__LISTEN, value: "0.0.0.0:8080" }
  - { name: WALHOOK_HTTP__METRICS_LISTEN, value: "0.0.0.0:9464" }
volumeMounts:
  - { name: settings, mountPath: /etc/walhook, readOnly: true }
  - { name: secrets, mountPath: /run/secrets/walhook, readOnly: true }
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}
