{{- /* A name in the topology as Kubernetes writes names. */}}
{{- define "acktree.lower" -}}
{{ . | lower | replace "_" "-" | replace "." "-" }}
{{- end }}

{{- define "acktree.labels" -}}
app.kubernetes.io/name: acktree
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "acktree.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "acktree.confined" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "acktree.environment" -}}
- {name: ACKTREE_BOOTSTRAP_SERVER, value: {{ required "kafka.bootstrapServers is needed: host:port,…" .Values.kafka.bootstrapServers | quote }}}
{{- if .Values.kafka.clientProperties }}
- {name: ACKTREE_COMMAND_CONFIG, value: /etc/acktree/client.properties}
{{- end }}
{{- end }}

{{- /* What the pods of all roles have in common: root is the chart's context. */}}
{{- define "acktree.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
automountServiceAccountToken: false
terminationGracePeriodSeconds: 40
{{- end }}

{{- /*
A process and what belongs to it: root, component (also the end of its name), args, settings (replicas,
autoscaling, storage, env, resources), and probe (port, name, path) where it serves no metrics.
*/}}
{{- define "acktree.process" -}}
{{- $name := printf "%s-%s" .root.Release.Name .component | trunc 63 | trimSuffix "-" }}
{{- $probe := .probe | default (dict "port" 9464 "name" "metrics" "path" "/metrics") }}
{{- $isCompiled := eq $probe.name "metrics" }}
{{- $values := .root.Values }}
{{- $request := dict "path" $probe.path "port" $probe.name | toJson }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{- include "acktree.labels" . | nindent 4 }}
spec:
  {{- if not .settings.autoscaling }}
  replicas: {{ if kindIs "invalid" .settings.replicas }}1{{ else }}{{ .settings.replicas }}{{ end }}
  {{- end }}
  {{- if or .settings.storage .isAlone }}
  strategy: {type: Recreate}
  {{- end }}
  selector:
    matchLabels: {{- include "acktree.labels" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "acktree.labels" . | nindent 8 }}
    spec:
      {{- include "acktree.pod" .root | nindent 6 }}
      {{- if $isCompiled }}
      # Numba reads compiled code only where it may write, and the image is read-only.
      initContainers:
        - name: compiled-code
          image: {{ include "acktree.image" .root }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [cp, -R, /opt/numba, /tmp/numba]
          securityContext: {{ include "acktree.confined" . }}
          volumeMounts: [{name: tmp, mountPath: /tmp}]
          resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
      {{- end }}
      containers:
        - name: acktree
          image: {{ include "acktree.image" .root }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: {{ toJson .args }}
          env:
            {{- include "acktree.environment" .root | nindent 12 }}
            {{- if $isCompiled }}
            - {name: NUMBA_CACHE_DIR, value: /tmp/numba}
            {{- end }}
            {{- range $key, $value := .settings.env }}
            - {name: {{ $key }}, value: {{ $value | toString | quote }}}
            {{- end }}
          ports:
            - {name: metrics, containerPort: 9464}
            {{- if not $isCompiled }}
            - {name: {{ $probe.name }}, containerPort: {{ $probe.port }}}
            {{- end }}
          securityContext: {{ include "acktree.confined" . }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: home, mountPath: /var/lib/acktree}
            {{- if $values.kafka.clientProperties }}
            - {name: kafka, mountPath: /etc/acktree, readOnly: true}
            {{- end }}
            {{- with .token }}
            - {name: token, mountPath: /etc/token, readOnly: true}
            {{- end }}
          startupProbe: {httpGet: {{ $request }}, periodSeconds: 2, failureThreshold: 60}
          readinessProbe: {httpGet: {{ $request }}, periodSeconds: 5, timeoutSeconds: 3}
          livenessProbe: {httpGet: {{ dict "path" "/health" "port" $probe.name | toJson }}, periodSeconds: 10, timeoutSeconds: 3, failureThreshold: 6}
          resources: {{ toJson .settings.resources }}
      volumes:
        - {name: tmp, emptyDir: {}}
        {{- if .settings.storage }}
        - {name: home, persistentVolumeClaim: {claimName: {{ $name }}}}
        {{- else }}
        - {name: home, emptyDir: {}}
        {{- end }}
        {{- with $values.kafka.clientProperties }}
        - {name: kafka, secret: {secretName: {{ . }}, defaultMode: 0440}}
        {{- end }}
        {{- with .token }}
        - {name: token, secret: {secretName: {{ . }}, defaultMode: 0440}}
        {{- end }}
{{- with .settings.storage }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ $name }}
  labels: {{- include "acktree.labels" $ | nindent 4 }}
  annotations: {helm.sh/resource-policy: keep}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources: {requests: {storage: {{ .size }}}}
{{- end }}
{{- with .settings.autoscaling }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels: {{- include "acktree.labels" $ | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ .cpuUtilization }}}}
{{- end }}
{{- end }}
