// stages prints the life cycles that kwok plays for nodes and pods, as kwok's configuration file: initialised nodes
// with leases, and pods that are Ready at once and gone as soon as they are deleted. It leaves out the stage that completes
// pods of Jobs at once: pods here train for ever, whoever made them.
package main

import (
	"fmt"

	node "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	pod "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
)

func main() {
	for _, stage := range []string{
		node.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease,
		pod.DefaultPodReady, pod.DefaultPodDelete,
	} {
		fmt.Println("---\n" + stage)
	}
}
