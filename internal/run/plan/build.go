package plan

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// BuildProgram names carboy itself in the bottle of a build or a service.
const BuildProgram = "/.carboy/build"

// DefaultPath lists where a command finds programs if its image does not say.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Order tells BuildProgram what to do. It is a line of JSON on standard input.
type Order struct {
	What string  // for records of runs
	Run  *Inside // what to become; nil: nothing
}

// Inside describes a process of an image.
type Inside struct {
	Args, Env []string
	Dir, User string // USER, USER:GROUP, or empty for root, of the image's own accounts
}

// Program returns the path of the running program, which is shown inside.
func Program() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	var named, running unix.Stat_t
	if err := errors.Join(unix.Stat(path, &named), unix.Stat("/proc/self/exe", &running)); err != nil {
		return "", err
	}
	if named.Dev != running.Dev || named.Ino != running.Ino {
		return "", fmt.Errorf("%s was replaced while it ran: run the command again", path)
	}
	return path, nil
}

// Build makes a run a step of building an image, or a service. Its command is the bottle's
// root, with the rights inside that packages need, and the accounts are the image's. Mode must
// be none.
type Build struct {
	// Root is the directory that the stage began with; Upper names a file with all that its
	// steps have changed since, as Take got it, or "".
	Root, Upper string
	Program     string // a file: carboy itself
	// Take gets a tar of all that the stage's steps have changed, this one included, if the
	// command ended with 0. It may be nil. The stream comes from inside.
	Take func(io.Reader) error
	// Data says that standard output is data: it is neither counted nor kept.
	Data bool
}

// plan makes p the plan of a build.
func (b *Build) plan(p *Plan) {
	p.building, p.Rootfs = true, b.Root
	p.User.User = bottle.User{Name: "root", Home: "/root"}
	p.Mounts = []bottle.Mount{{Source: b.Program, Target: BuildProgram, Access: bottle.AccessReadOnly}}
	p.Begin = func(s *bottle.Spec) (err error) {
		s.Builds = true
		if b.Upper != "" {
			s.Upper, err = os.Open(b.Upper)
		}
		return err
	}
}

// Building reports whether an image is built.
func (p *Plan) Building() bool { return p.building }
