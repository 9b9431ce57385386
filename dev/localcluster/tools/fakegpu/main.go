// fakegpu is a kubelet device plugin that advertises devices which do not exist, so that scheduling, allocation and
// health of GPUs can be tried on a machine without any. One process serves one resource, of any name. A file named like a device in the -unhealthy folder makes that
// device unhealthy until the file is removed.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const retryAfter = 200 * time.Millisecond

type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	count     int
	unhealthy string
}

func (p *plugin) devices() []*pluginapi.Device {
	devices := make([]*pluginapi.Device, p.count)
	for index := range devices {
		device := &pluginapi.Device{ID: fmt.Sprintf("gpu%d", index), Health: pluginapi.Healthy}
		if _, err := os.Stat(filepath.Join(p.unhealthy, device.ID)); err == nil {
			device.Health = pluginapi.Unhealthy
		}
		devices[index] = device
	}
	return devices
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once, and again whenever the health of one has changed.
func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		devices := p.devices()
		if state := fmt.Sprint(devices); state != sent {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = state
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"FAKE_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// socketName differs between resources, each of which has a plugin of its own on a node.
func socketName(resource string) string {
	return "fakegpu-" + strings.ReplaceAll(resource, "/", "-") + ".sock"
}

func register(resource string) error {
	connection, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: socketName(resource), ResourceName: resource,
	}, grpc.WaitForReady(true))
	return err
}

// serveOneKubeletLife returns when the kubelet has gone: at its next start it deletes every socket in the folder.
func serveOneKubeletLife(p *plugin, resource string) error {
	path := filepath.Join(pluginapi.DevicePluginPath, socketName(resource))
	_ = os.Remove(path) // one of an earlier life may lie there
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	if err := register(resource); err != nil {
		return err
	}
	log.Printf("registered %d of %s", p.count, resource)
	for {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the kubelet has restarted: %w", err)
		}
		time.Sleep(retryAfter)
	}
}

func main() {
	p := &plugin{}
	flag.IntVar(&p.count, "count", 8, "number of devices")
	flag.StringVar(&p.unhealthy, "unhealthy", "/run/fakegpu/unhealthy", "folder of marks on unhealthy devices")
	resource := flag.String("resource", "nvidia.com/gpu", "name of the resource")
	flag.Parse()
	for {
		log.Print(serveOneKubeletLife(p, *resource))
		time.Sleep(retryAfter)
	}
}
