package hostexec

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// TestDetachRefuses covers what Detach refuses.
func TestDetachRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		role  Role
		env   []string
		order []byte
	}{
		"a program":       {role: "sh"},
		"no role":         {role: ""},
		"the supervisor":  {role: supervisorArg0},
		"a loader's":      {RolePrepared, []string{"LD_PRELOAD=/tmp/x.so"}, nil},
		"the runtime's":   {RolePrepared, []string{"GODEBUG=x=1"}, nil},
		"a command's own": {RolePrepared, []string{markName + "=x"}, nil},
	} {
		if err := Detach(c.role, c.env, c.order); err == nil {
			t.Errorf("%s was started", name)
		}
	}
	if err := Detach(RolePrepared, nil, []byte(strings.Repeat("x", maxOrder+1))); !errors.Is(err, errOrderTooLong) {
		t.Errorf("an order that is too long: %v", err)
	}
}

// A detached process has its order, and of its caller only what it was given.
func TestDetach(t *testing.T) {
	file := t.TempDir() + "/told"
	t.Setenv("SECRET", "of the caller")
	if err := Detach(RolePrepared, []string{"GIVEN=1"}, []byte(file+"\n")); err != nil {
		t.Fatal(err)
	}
	var told []byte
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool { told, _ = os.ReadFile(file); return len(told) > 0 }) {
		t.Fatal("it says nothing")
	}
	if want := "in /, session its own: true, variables [GIVEN=1]"; string(told) != want {
		t.Errorf("%s, want %s", told, want)
	}
}

// detached is the process of TestDetach. It writes what it finds to the file that its order
// names.
func detached() int {
	file, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return 1
	}
	dir, _ := os.Getwd()
	session, _ := unix.Getsid(0)
	file = strings.TrimSpace(file)
	err = os.WriteFile(file+".part", fmt.Appendf(nil, "in %s, session its own: %v, variables %v", dir, session == os.Getpid(), os.Environ()), 0o644)
	if err == nil {
		err = os.Rename(file+".part", file)
	}
	if err != nil {
		return 1
	}
	return 0
}
