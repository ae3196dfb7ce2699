package ship

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/carboy/carboy/internal/ship/plan"
)

// loader reads a module at a commit.
type loader func() (*source, error)

// ran reports whether a container did what it was there for.
func ran(c plan.Container) bool { return c.Status == "running" && c.Health != "unhealthy" }

// judgeBack holds what a plan goes back to to what was seen on the host, to the commit
// that it names, and to the record here of the job in force: who wrote the plan decides
// nothing of it. s is the plan's own commit. It gives what ran before by its commit, nil
// where there is nothing to go back to. The error is a [Mismatch] when the plan says
// something else than follows from these. load reads that commit where it is not s.
func (e *Engine) judgeBack(p *plan.Plan, obs *plan.Observation, s *source, load loader) (*source, error) {
	v := &p.Previous
	no := func(format string, args ...any) (*source, error) {
		return nil, fail(Mismatch, p.Host.Name, "make a new plan", "what it goes back to is not what runs: "+format, args...)
	}
	switch n := len(obs.Containers); {
	case n > 1:
		return no("%d containers of the service were seen", n)
	case (v.State == plan.PreviousNone) != (n == 0):
		return no("it says %s, and %d containers were seen", v.State, n)
	case n == 0:
		return nil, nil
	}
	now := obs.Containers[0]
	last, err := e.inForce(p, obs)
	if err != nil {
		return nil, err
	}
	if err := sameRoot(p, last, now); err != nil || v.State == plan.PreviousUnknown {
		return nil, err
	}
	image := now.Image
	switch {
	case v.Ran != ran(now):
		return no("the service is %s, %s", shown(now.Status), shown(now.Health))
	case v.Job != "" && v.Job != obs.Current:
		return no("another job is in force")
	case v.Job != "" && last == nil:
		// Only the host knows that job. What it says of the commit is checked below.
	case v.Job != "" && (last.Target.Absent || v.Commit != last.Commit):
		return no("the job in force is of commit %.12s", last.Commit)
	case v.Job != "":
		if now.Hash != last.Target.ConfigHash {
			image = last.Target.ImageID // it drifted: what was applied is known to work
		}
	case v.Commit == p.Commit && p.Target.ConfigHash == now.Hash:
	case last != nil && !last.Target.Absent:
		return no("the job in force is of commit %.12s", last.Commit)
	default:
		in, err := e.readImported(p.Module)
		if err != nil {
			return nil, err
		}
		if in == nil || v.Commit != in.Commit {
			return no("nothing says that it is commit %.12s", v.Commit)
		}
	}
	if v.ImageID != image {
		return nil, fail(Mismatch, p.Host.Name, "carboy ship status "+p.Module+" reads what the host remembers", "what it goes back to is not what runs: its image is %s, not %s", image, v.ImageID)
	}
	old := s
	if v.Commit != s.commit {
		if old, err = load(); err != nil {
			return no("commit %.12s: %w", v.Commit, err)
		}
	}
	a, b := old.module, s.module
	if string(old.compose.Data) != v.Compose || old.compose.Image != v.Image || a.Project != b.Project || a.Service != b.Service || a.Root != b.Root {
		return no("commit %.12s says something else", v.Commit)
	}
	return old, nil
}

// inForce is the plan of the job in force by the records here; nil when they have none.
func (e *Engine) inForce(p *plan.Plan, obs *plan.Observation) (*plan.Plan, error) {
	_, digest, ok := strings.Cut(obs.Current, "-")
	if !ok || !jobName.MatchString(obs.Current) {
		return nil, nil
	}
	r, err := e.readRecord(p.Host.Name, p.Module, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	last, _, err := plan.Decode(r.Plan)
	return last, err
}

// sameRoot refuses another remote_root while a service runs in the one of before: its
// files lie there, and going back would look for them here.
func sameRoot(p, last *plan.Plan, now plan.Container) error {
	if last == nil || last.Target.Absent || last.Target.Root == p.Target.Root {
		return nil
	}
	return fail(Refused, p.Host.Name, "remove it there first: docker rm -f "+now.ID[:12], "remote_root is %s, and the service runs in %s", p.Target.Root, last.Target.Root)
}
