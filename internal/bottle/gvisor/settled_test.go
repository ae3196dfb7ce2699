package gvisor

import (
	"slices"
	"testing"
)

func TestSettled(t *testing.T) {
	with := []string{"runsc-sandbox", "--rootless=true", "boot", "--bundle=/b", "--sync-userns-fd=7", "--uid=1001", "--gid=1002", "--apply-caps=true", "id"}
	without := []string{"runsc-sandbox", "--rootless=true", "boot", "--bundle=/b", "--apply-caps=true", "id"}
	for _, c := range []struct {
		name     string
		args     []string
		uid, gid int
		want     []string
		fd       int
	}{
		{"both ids are right", with, 1001, 1002, without, 7},
		{"another user", with, 1000, 1002, with, -1},
		{"another group", with, 1001, 1001, with, -1},
		{"started by root: nothing to wait for", without, 1001, 1002, without, -1},
		{"gVisor leaves zero out", []string{"runsc-gofer", "gofer", "--sync-userns-fd=9", "id"}, 0, 0, []string{"runsc-gofer", "gofer", "id"}, 9},
		{"zero is not ours", []string{"runsc-gofer", "gofer", "--sync-userns-fd=9", "id"}, 5, 0, []string{"runsc-gofer", "gofer", "--sync-userns-fd=9", "id"}, -1},
		{"not a number", []string{"runsc-gofer", "--sync-userns-fd=x", "id"}, 0, 0, []string{"runsc-gofer", "--sync-userns-fd=x", "id"}, -1},
		{"a value that looks like one", []string{"runsc-gofer", "uid=5", "--sync-userns-fd=9"}, 0, 0, []string{"runsc-gofer", "uid=5"}, 9},
	} {
		in := slices.Clone(c.args)
		got, fd := settled(in, c.uid, c.gid)
		if !slices.Equal(got, c.want) || fd != c.fd {
			t.Errorf("%s: %q, descriptor %d; want %q, %d", c.name, got, fd, c.want, c.fd)
		}
		if !slices.Equal(in, c.args) {
			t.Errorf("%s: the arguments were written to", c.name)
		}
	}
}
