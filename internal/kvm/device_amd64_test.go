package kvm

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestLayout: the kernel's requests hold the sizes of its structures.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name    string
		request uintptr
		size    uintptr
	}{
		{"regs", setRegs, unsafe.Sizeof(regs{})},
		{"sregs", getSregs, unsafe.Sizeof(sregs{})},
		{"sregs", setSregs, unsafe.Sizeof(sregs{})},
		{"memory region", setUserMemoryRegion, unsafe.Sizeof(memoryRegion{})},
	} {
		if want := c.request >> 16 & 0x3fff; c.size != want {
			t.Errorf("%s has %d bytes, the request says %d", c.name, c.size, want)
		}
	}
	if len(code) != 6 || code[3] != 0x75 || int8(code[4]) != -5 {
		t.Errorf("the loop is % x", code)
	}
}

// TestNotKVM: a file that is no KVM device is told apart, by the kernel's own answers.
func TestNotKVM(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := kernelDevice{f}
	if _, err := d.version(); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("the version of %s: %v", os.DevNull, err)
	}
	if _, err := d.machine(); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a machine of %s: %v", os.DevNull, err)
	}
	other, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &kernelVM{dev: f, vm: other}
	if err := m.load(rounds); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("loading: %v", err)
	}
	m.close()
	d.close()
	for why, want := range map[uint32]string{8: "SHUTDOWN", 9: "FAIL_ENTRY", 17: "INTERNAL_ERROR", 2: "reason 2"} {
		if !strings.Contains(exitName(why), want) {
			t.Errorf("exit %d is %q", why, exitName(why))
		}
	}
}
