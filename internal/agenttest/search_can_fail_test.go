package agenttest

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/testenv"
)

// TestSearchFinds checks the search itself: it finds a key that is in a bottle, in a
// variable, a file, a file name or a process's memory alone.
func TestSearchFinds(t *testing.T) {
	random := make([]byte, 12)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	key := "sk-real-" + hex.EncodeToString(random)
	h := newHost(t)
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	guest := guestFile(t, h.base)
	// Reverse the key, so that it is nowhere else.
	reversed := []byte(key)
	slices.Reverse(reversed)
	backwards := string(reversed)
	for name, c := range map[string]struct{ script, want string }{
		"nowhere":  {"", "the key is nowhere"},
		"variable": {"export K=$(echo " + backwards + " | rev);", "/environ"},
		"file":     {"echo " + backwards + " | rev > ~/hidden;", "/hidden"},
		"base64":   {"echo x" + backwards + " | rev | tr -d '\\nx' | base64 > hidden;", "/hidden"},
		"name":     {"touch /tmp/$(echo " + backwards + " | rev);", "the name /tmp/"},
		"memory":   {"k=$(echo " + backwards + " | rev);", "/mem"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, msg testenv.Buffer
			_, err := h.client.Run(t.Context(), carboy.RunOptions{
				Command:   []string{guestPath, insideArg, newNeedle(key).String(), newNeedle("MARK=carboy-placeholder-").String(), "/none", "/bin/sh", "-c", c.script + guestPath + " " + askArg},
				Workspace: h.ws, Env: []string{"MARK=carboy-placeholder-1"}, Stdout: &out, Stderr: &msg,
				Mounts: []string{guest + ":" + guestPath + ":ro"},
			})
			if err != nil || !strings.Contains(out.String(), c.want) || name != "nowhere" && !strings.Contains(out.String(), "THE KEY IS IN") {
				t.Errorf("%v: %s%s", err, out.String(), msg.String())
			}
		})
	}
}
