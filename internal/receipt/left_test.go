package receipt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/store"
)

// TestLeftInside: files that a person would miss are counted; what was removed or moved
// away, what lies on the host, and what programs make for themselves is not.
func TestLeftInside(t *testing.T) {
	r := &Receipt{Mounts: []Mount{{Target: "/mnt/x", Access: "read-write"}}, Files: &Files{}}
	for _, line := range []string{
		"/opt/a make,write", "/opt/b create,write", "/opt/c/d/e/f create,write", "/home/me/new rename", "/home/me/again rename,write",
		"/opt/gone make,write,remove", "/home/me/old create,write,rename", "/opt/dir make", "/opt/empty create", "/opt/mode mode",
		"/mnt/x/y write", "/tmp/a write", "/var/lib/dpkg/status write", "/home/me/.cache/x write", "/home/me/.npmrc write",
	} {
		name, how, _ := strings.Cut(line, " ")
		r.Files.Written = append(r.Files.Written, Written{Path: store.Raw(name), How: strings.Split(how, ",")})
	}
	r.Files.Written = append(r.Files.Written, Written{Path: "/work/in", How: []string{"write"}, Inside: true})
	if got := fmt.Sprint(r.LeftInside()); got != "[{/home/me 2} {/opt 2} {/opt/c/d 1}]" {
		t.Error(got)
	}
	if got := (&Receipt{}).LeftInside(); got != nil {
		t.Error(got)
	}
}
