package hostexec

import (
	"errors"
	"strings"
	"testing"
)

// TestDetachRefuses covers what Detach refuses. The packages that use a role test that it
// works.
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
