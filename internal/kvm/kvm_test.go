package kvm

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake answers as a machine does.
type fake struct {
	openErr, versionErr, createErr, loadErr, runErr error
	version_                                        int
	took                                            []time.Duration // one for each run; the last repeats

	opened, closed, runs, rounds int
}

func (f *fake) open() (device, error) {
	if f.openErr != nil {
		return nil, &fs.PathError{Op: "open", Path: devicePath, Err: f.openErr}
	}
	f.opened++
	return f, nil
}

func (f *fake) close() { f.closed++ }

func (f *fake) version() (int, error) { return f.version_, f.versionErr }

func (f *fake) machine() (vm, error) {
	if f.createErr != nil {
		return nil, f.createErr
	}
	f.opened++
	return f, nil
}

func (f *fake) load(n int) error {
	f.rounds = n
	return f.loadErr
}

func (f *fake) run() (time.Duration, error) {
	if f.runErr != nil {
		return 0, f.runErr
	}
	i := min(f.runs, len(f.took)-1)
	f.runs++
	return f.took[i], nil
}

const fast, slow = 3 * time.Microsecond, 11 * time.Millisecond

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		fake   fake
		reason string // empty: usable
		advice string
	}{
		"hardware":                           {fake: fake{took: []time.Duration{fast}}},
		"hardware, once disturbed":           {fake: fake{took: []time.Duration{slow, fast}}},
		"hardware, disturbed until the last": {fake: fake{took: []time.Duration{slow, slow, slow, slow, fast}}},
		"at the limit":                       {fake: fake{took: []time.Duration{loopLimit}}},
		"absent":                             {fake{openErr: unix.ENOENT}, "no /dev/kvm", "modprobe kvm-intel"},
		"a node without a module":            {fake{openErr: unix.ENODEV}, "no /dev/kvm", "nested virtualisation"},
		"a node of nothing":                  {fake{openErr: unix.ENXIO}, "no /dev/kvm", "firmware"},
		"not permitted":                      {fake{openErr: unix.EACCES}, "may not open", "usermod -aG kvm"},
		"refused by a profile":               {fake{openErr: unix.EPERM}, "may not open", "setfacl"},
		"no descriptors":                     {fake{openErr: unix.EMFILE}, "can't be opened", "/dev/kvm is"},
		"another device":                     {fake{versionErr: unix.ENOTTY}, "does not answer as KVM", "/dev/kvm is"},
		"an old interface":                   {fake{version_: 10}, "version 10", "newer"},
		"a new interface":                    {fake{version_: 13}, "version 13", "newer"},
		"busy":                               {fake{createErr: unix.EBUSY}, "another hypervisor", "VirtualBox"},
		"switched off":                       {fake{createErr: unix.ENODEV}, "switched off", "firmware"},
		"nothing supported":                  {fake{createErr: unix.EOPNOTSUPP}, "switched off", "firmware"},
		"full":                               {fake{createErr: unix.ENOMEM}, "no room", "end other"},
		"strange":                            {fake{createErr: unix.E2BIG}, "makes no virtual machine", "dmesg"},
		"no memory for it":                   {fake{loadErr: unix.EEXIST}, "can't be set up", "dmesg"},
		"no entry":                           {fake{runErr: errors.New("KVM_EXIT_FAIL_ENTRY")}, "does not run", "dmesg"},
		"emulated":                           {fake{took: []time.Duration{slow}}, "emulates guest kernels", "another backend"},
		"emulated, hardly":                   {fake{took: []time.Duration{loopLimit + 1}}, "emulates guest kernels", "another backend"},
	} {
		f := c.fake
		if f.version_ == 0 {
			f.version_ = apiVersion
		}
		err := check(&f)
		if f.opened != f.closed {
			t.Errorf("%s: %d opened, %d closed", name, f.opened, f.closed)
		}
		if c.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if f.rounds != 2000 {
				t.Errorf("%s: %d rounds", name, f.rounds)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if !strings.Contains(e.Error(), c.reason) || !strings.Contains(e.Advice, c.advice) {
			t.Errorf("%s: %q, advice %q", name, e, e.Advice)
		}
		for _, cause := range []error{f.openErr, f.versionErr, f.createErr, f.loadErr, f.runErr} {
			if cause != nil && !errors.Is(err, cause) {
				t.Errorf("%s: %v hides %v", name, err, cause)
			}
		}
	}
}

// TestMessagesDiffer: each thing that can be wrong says something else, and something to do.
func TestMessagesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range []*fake{
		{openErr: unix.ENOENT}, {openErr: unix.EACCES}, {version_: 11}, {version_: 12, createErr: unix.EBUSY}, {version_: 12, took: []time.Duration{slow}},
	} {
		var e *Error
		if err := check(f); !errors.As(err, &e) {
			t.Fatalf("%+v: %v", f, err)
		}
		if e.Advice == "" || seen[e.Advice] || seen[e.Reason] {
			t.Errorf("not of its own: %q, %q", e.Reason, e.Advice)
		}
		seen[e.Advice], seen[e.Reason] = true, true
	}
}

// TestThisMachine: the answer agrees with what this machine is known to be.
func TestThisMachine(t *testing.T) {
	err := Check()
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("the answer is %v", err)
	}
	if err != nil {
		t.Logf("%v; advice: %s", err, e.Advice)
	}
	f, openErr := os.OpenFile(devicePath, os.O_RDWR, 0)
	if openErr == nil {
		f.Close()
	}
	_, pvmErr := os.Stat("/sys/module/kvm_pvm")
	switch {
	case os.IsNotExist(openErr):
		if e == nil || !strings.Contains(e.Reason, "has no") {
			t.Errorf("there is no %s, and the answer is %v", devicePath, err)
		}
	case os.IsPermission(openErr):
		if e == nil || !strings.Contains(e.Reason, "may not open") {
			t.Errorf("%s may not be opened, and the answer is %v", devicePath, err)
		}
	case openErr == nil && pvmErr == nil:
		if e == nil || !strings.Contains(e.Reason, "emulates") {
			t.Errorf("this KVM is PVM, and the answer is %v", err)
		}
	}
	if again := Check(); (again == nil) != (err == nil) {
		t.Errorf("asked again: %v, before: %v", again, err)
	}
}
