package session

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"github.com/carboy/carboy/internal/macos/frames"
)

// variablesName names the variable with the descriptor from which a command line that Serve
// starts reads its environment.
const variablesName = "CARBOY_SESSION_VARIABLES"

// Inherit sets the variables that [Serve] has for this process, in this process's memory
// only: /proc does not show them. Elsewhere it does nothing.
func Inherit() error {
	v := os.Getenv(variablesName)
	if v == "" {
		return nil
	}
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return fmt.Errorf("%s is not a descriptor", variablesName)
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "variables")
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, frames.MaxPayload))
	if err != nil {
		return fmt.Errorf("read the variables of the session: %w", err)
	}
	var vars map[string]string
	if err := json.Unmarshal(b, &vars); err != nil {
		return fmt.Errorf("read the variables of the session: %w", err)
	}
	os.Unsetenv(variablesName)
	for k, v := range vars {
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("set the variable %q of the session: %w", k, err)
		}
	}
	return nil
}
