package ship

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/carboy/carboy/internal/ship/plan"
)

// loader reads a module at a commit.
type loader func() (*source, error)

// ran reports whether a container runs and is not unhealthy.
func ran(c plan.Container) bool { return c.Status == "running" && c.Health != "unhealthy" }

// judgeBack checks a plan's Previous, because the plan's author is not trusted. It must
// follow from the observation, from the commit that it names, and from the record here of
// the current job. s is the module at the plan's commit; load reads it at the previous
// commit, if that is another. judgeBack returns the module at the previous commit, nil if
// no previous state is known. The error is a [Mismatch] if the plan says something else.
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
	last, err := e.currentPlan(p, obs)
	if err != nil {
		return nil, err
	}
	if err := sameRoot(p, last, now); err != nil || v.State == plan.PreviousUnknown {
		return nil, err
	}
	why, err := e.judgePreviousCommit(p, obs, last)
	if err != nil {
		return nil, err
	}
	if why != "" {
		return no("%s", why)
	}
	image := now.Image
	if v.Job != "" && last != nil && now.Hash != last.Target.ConfigHash {
		image = last.Target.ImageID // the service has drifted: go back to what was applied
	}
	if v.ImageID != image {
		return nil, fail(Mismatch, p.Host.Name, "carboy ship status "+p.Module+" reads what the host remembers", "what it goes back to is not what runs: its image is %s, not %s", image, v.ImageID)
	}
	if v.Job != "" && last != nil && v.Unrecorded == asApplied(last, now) {
		return no("it says the opposite of the record of whether that was applied")
	}
	old := s
	if v.Commit != s.commit {
		old, err = load()
		if errors.Is(err, errShallow) {
			return nil, err // what it goes back to is known, though not here
		}
		if err != nil {
			return no("commit %.12s: %w", v.Commit, err)
		}
	}
	a, b := old.module, s.module
	if string(old.compose.Data) != v.Compose || old.compose.Image != v.Image || a.Project != b.Project || a.Service != b.Service || a.Root != b.Root {
		return no("commit %.12s says something else", v.Commit)
	}
	return old, nil
}

// judgePreviousCommit returns why the running service is not of the commit that p.Previous
// names, "" if it is, or if only the host knows. last is the plan of the current job, nil
// if there is no record of it here.
func (e *Engine) judgePreviousCommit(p *plan.Plan, obs *plan.Observation, last *plan.Plan) (why string, err error) {
	v, now := &p.Previous, obs.Containers[0]
	switch {
	case v.Ran != ran(now):
		return fmt.Sprintf("the service is %s, %s", shown(now.Status), shown(now.Health)), nil
	case v.Job != "" && v.Job != obs.Current:
		return "another job is in force", nil
	case v.Job != "" && last == nil:
		return "", nil // judgeBack compares the compose file with the commit
	case v.Job != "" && (last.Target.Absent || v.Commit != last.Commit):
		return fmt.Sprintf("the job in force is of commit %.12s", last.Commit), nil
	case v.Job != "":
		return "", nil
	case v.Commit == p.Commit && p.Target.ConfigHash == now.Hash:
		return "", nil
	case last != nil && !last.Target.Absent:
		return fmt.Sprintf("the job in force is of commit %.12s", last.Commit), nil
	}
	in, err := e.readImported(p.Module)
	if err == nil && (in == nil || v.Commit != in.Commit) {
		why = fmt.Sprintf("nothing says that it is commit %.12s", v.Commit)
	}
	return why, err
}

// currentPlan returns the plan of the host's current job from the records here, nil if
// there is no record of it.
func (e *Engine) currentPlan(p *plan.Plan, obs *plan.Observation) (*plan.Plan, error) {
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

// sameRoot returns an error if remote_root changes while the service runs: its files are in
// the old directory, and a rollback would look for them in the new one.
func sameRoot(p, last *plan.Plan, now plan.Container) error {
	if last == nil || last.Target.Absent || last.Target.Root == p.Target.Root {
		return nil
	}
	return fail(Refused, p.Host.Name, "remove it there first: docker rm -f "+now.ID[:12], "remote_root is %s, and the service runs in %s", p.Target.Root, last.Target.Root)
}
