module trainyard.dev/localcluster/tools/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2 // indirect
	github.com/prometheus-operator/prometheus-operator v0.85.0 // indirect
	sigs.k8s.io/scheduler-plugins v0.34.1-devel // indirect
	volcano.sh/volcano v1.10.0 // indirect
)
