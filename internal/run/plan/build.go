package plan

import (
	"io"
	"os"

	"github.com/carboy/carboy/internal/bottle"
)

// BuildProgram names carboy itself in the bottle of a build.
const BuildProgram = "/.carboy/build"

// Build makes a run a step of building an image. Its command is the bottle's root, with the
// rights inside that packages need, and the accounts are the image's. Mode must be none.
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
