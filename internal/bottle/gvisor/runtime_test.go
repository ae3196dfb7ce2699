package gvisor

import (
	"slices"
	"testing"
)

// TestOfBottle tells the inner processes of bottles from those of containers.
func TestOfBottle(t *testing.T) {
	p := plan{}
	for _, dir := range stageCandidates {
		l := &layout{state: dir + "/state"}
		conf, err := newConfig(&p, l)
		if err != nil {
			t.Fatal(err)
		}
		args := slices.Concat([]string{"runsc-sandbox"}, conf.ToFlags(), []string{"boot", "--bundle=" + dir + "/bundle", "x"})
		if !ofBottle(args) {
			t.Errorf("a bottle's process is taken for a container's: %q", args)
		}
	}
	for _, args := range [][]string{
		{"--root=/run/docker/runtime-carboy/moby", "--log=/tmp/state", "create", "x"},
		{"--root", "/run/containerd/x", "state", "x"},
		{"kill", "/tmp/state", "--root=/tmp/state/x"},
		slices.Concat(runtimeFlags(true), runtimeFlags(false)),
		{},
	} {
		if ofBottle(args) {
			t.Errorf("a container's process is taken for a bottle's: %q", args)
		}
	}
}

// TestRuntimeFlags: the settings of containers are gVisor's. Only rootless engines go without
// control groups, and only they have a kernel that opens files of the host itself.
func TestRuntimeFlags(t *testing.T) {
	for flag, whole := range map[string]bool{"--ignore-cgroups": false, "--directfs=false": true} {
		if slices.Contains(runtimeFlags(true), flag) != whole || slices.Contains(runtimeFlags(false), flag) == whole {
			t.Errorf("%s: %q, %q", flag, runtimeFlags(true), runtimeFlags(false))
		}
	}
}
