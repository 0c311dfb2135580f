{{- define "kvorum.name" -}}
{{- if contains "kvorum" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kvorum" (.Release.Name | trunc 33 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- define "kvorum.selector" -}}
app.kubernetes.io/name: kvorum
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvorum.labels" -}}
{{ include "kvorum.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kvorum.scheme" -}}
{{- if .Values.tls.enabled }}https{{ else }}http{{ end }}
{{- end }}

{{- /* The domain of the pods: a pod's host is its name, a dot and this. */ -}}
{{- define "kvorum.domain" -}}
{{ include "kvorum.name" . }}-peers.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "kvorum.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "kvorum.clientSecret" -}}
{{ .Values.tls.clientSecret | default (printf "%s-client-tls" (include "kvorum.name" .)) }}
{{- end }}

{{- define "kvorum.peerSecret" -}}
{{ .Values.tls.peerSecret | default (printf "%s-peer-tls" (include "kvorum.name" .)) }}
{{- end }}

{{- define "kvorum.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "kvorum.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The variables of kvorumctl; the caller adds KVORUMCTL_ENDPOINTS. */ -}}
{{- define "kvorum.ctlVariables" -}}
{{- if .Values.tls.enabled }}
- name: KVORUMCTL_CACERT
  value: /etc/kvorum-tls/client/ca.crt
- name: KVORUMCTL_CERT
  value: /etc/kvorum-tls/client/tls.crt
- name: KVORUMCTL_KEY
  value: /etc/kvorum-tls/client/tls.key
{{- end }}
{{- if .Values.authSecret }}
- name: KVORUMCTL_USER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.authSecret }}
      key: username
- name: KVORUMCTL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.authSecret }}
      key: password
{{- end }}
{{- end }}

{{- /* One endpoint, the service: it leads only to members that are ready, so that a quorum answers. */ -}}
{{- define "kvorum.serviceEndpoint" -}}
- name: KVORUMCTL_ENDPOINTS
  value: {{ include "kvorum.scheme" . }}://{{ include "kvorum.name" . }}.{{ .Release.Namespace }}.svc:2379
{{- end }}

{{- define "kvorum.ctlMounts" -}}
{{- if .Values.tls.enabled }}
- name: client-tls
  mountPath: /etc/kvorum-tls/client
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "kvorum.ctlVolumes" -}}
{{- if .Values.tls.enabled }}
- name: client-tls
  secret:
    secretName: {{ include "kvorum.clientSecret" . }}
    defaultMode: 0440
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- /* What the pods of the members and those of the jobs have in common. */ -}}
{{- define "kvorum.pod" -}}
automountServiceAccountToken: false
{{- /* Kubernetes would set KVORUM_PORT and others, which the server takes for settings. */}}
enableServiceLinks: false
securityContext:
  {{- include "kvorum.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
