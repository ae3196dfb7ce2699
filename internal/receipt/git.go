package receipt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carboy/carboy/internal/store"
)

// Git reports the fetches and pushes through the git gate.
type Git struct {
	Repos []GitRepo `json:"repos"` // that the bottle declares, by name
	// Pushes lists at most MaxPushes, in the order in which they ended. If there are
	// more, the first refused or failed ones are kept.
	Pushes      []Push `json:"pushes"`
	PushesTotal int64  `json:"pushes_total"`
	// Keys lists the deploy keys that were made for this run.
	Keys []GitKey `json:"keys"`
}

// GitRepo counts the requests for one repository.
type GitRepo struct {
	Name string    `json:"name"`
	URL  store.Raw `json:"url"` // of upstream
	// Fetches counts requests that upstream answered, lists of references included;
	// FetchesFailed those that upstream or the gate did not.
	Fetches       int64 `json:"fetches"`
	FetchesFailed int64 `json:"fetches_failed"`
	Pushes        int64 `json:"pushes"`         // that upstream took
	PushesRefused int64 `json:"pushes_refused"` // by the gate: upstream has seen nothing of them
	PushesFailed  int64 `json:"pushes_failed"`  // by upstream, or on the way
	BytesUp       int64 `json:"bytes_up"`       // from the bottle
	BytesDown     int64 `json:"bytes_down"`     // to it
}

// PushVerdict is the outcome of a push. The zero PushVerdict is not valid.
type PushVerdict string

// The verdicts.
const (
	Pushed      PushVerdict = "done"    // upstream has it
	PushRefused PushVerdict = "refused" // by the gate
	PushFailed  PushVerdict = "failed"  // by upstream, or on the way
)

// Push is one push.
type Push struct {
	Repo    string      `json:"repo"`
	Verdict PushVerdict `json:"verdict"`
	// Reason is set if the push was refused or failed.
	Reason    string    `json:"reason,omitempty"`
	Refs      []PushRef `json:"refs"`
	RefsTotal int64     `json:"refs_total"`
	// Commits that upstream did not have.
	Commits      []string `json:"commits"`
	CommitsTotal int64    `json:"commits_total"`
	Objects      int64    `json:"objects"` // new ones
	Scanned      int64    `json:"scanned"` // bytes of them that were looked through
	// Found lists the findings in the commits. A push with any was refused unless a
	// person allowed each.
	Found      []PushFound `json:"found"`
	FoundTotal int64       `json:"found_total"`
	Bytes      int64       `json:"bytes"` // from the bottle
}

// PushRef is a reference that a push changes. Old or New is empty where it is made or
// deleted.
type PushRef struct {
	Name store.Raw `json:"name"`
	Old  string    `json:"old,omitempty"`
	New  string    `json:"new,omitempty"`
	// Result is "ok" or upstream's reason for refusing; empty: upstream did not tell.
	Result string `json:"result,omitempty"`
}

// PushFound is a finding in a push. It never holds the value.
type PushFound struct {
	Rule      string    `json:"rule"`
	Secret    string    `json:"secret,omitempty"` // the name of a known secret
	Transform string    `json:"transform,omitempty"`
	Commit    string    `json:"commit,omitempty"`
	Where     string    `json:"where"` // file, note, commit, tag, name, submodule, object, reference, id, option
	File      store.Raw `json:"file,omitempty"`
	Line      int64     `json:"line,omitempty"` // from 1
	// Allow is the answer of the person who was asked; empty: nobody was.
	Allow string `json:"allow,omitempty"`
}

// KeyState tells whether a deploy key still exists. The zero KeyState is not valid.
type KeyState string

// The states.
const (
	KeyMade    KeyState = "made" // and the run has not ended
	KeyRevoked KeyState = "revoked"
	KeyLeft    KeyState = "left" // it may open the repository still
)

// GitKey is a deploy key.
type GitKey struct {
	Repo        string   `json:"repo"`
	Title       string   `json:"title"`
	Fingerprint string   `json:"fingerprint"`
	ID          string   `json:"id,omitempty"` // the forge's
	State       KeyState `json:"state"`
	// Error tells why the key was left, RemoveAt where a person can remove it.
	Error    string `json:"error,omitempty"`
	RemoveAt string `json:"remove_at,omitempty"`
}

func (g *Git) validate() error {
	var errs []error
	check := func(list string, n int, total int64, limit int) { errs = append(errs, bounded(list, n, total, limit)) }
	check("repositories", len(g.Repos), int64(len(g.Repos)), MaxGitRepos)
	check("deploy keys", len(g.Keys), int64(len(g.Keys)), MaxGitRepos)
	check("pushes", len(g.Pushes), g.PushesTotal, MaxPushes)
	for _, p := range g.Pushes {
		if p.Verdict != Pushed && p.Verdict != PushRefused && p.Verdict != PushFailed {
			errs = append(errs, fmt.Errorf("verdict on a push to %q is %q", p.Repo, p.Verdict))
		}
		check("references of a push", len(p.Refs), p.RefsTotal, MaxPushRefs)
		check("commits of a push", len(p.Commits), p.CommitsTotal, MaxPushCommits)
		check("findings of a push", len(p.Found), p.FoundTotal, MaxPushFindings)
	}
	for _, k := range g.Keys {
		if k.State != KeyMade && k.State != KeyRevoked && k.State != KeyLeft {
			errs = append(errs, fmt.Errorf("state of deploy key %q is %q", k.Title, k.State))
		}
	}
	return errors.Join(errs...)
}

func (g *Git) filled() *Git {
	if g == nil {
		return nil
	}
	c := *g
	c.Repos, c.Pushes, c.Keys = notNil(g.Repos), notNil(slices.Clone(g.Pushes)), notNil(g.Keys)
	for i := range c.Pushes {
		p := &c.Pushes[i]
		p.Refs, p.Commits, p.Found = notNil(p.Refs), notNil(p.Commits), notNil(p.Found)
	}
	return &c
}

// Left returns the deploy keys that may still give access to a repository.
func (g *Git) Left() (out []GitKey) {
	if g == nil {
		return nil
	}
	for _, k := range g.Keys {
		if k.State == KeyLeft {
			out = append(out, k)
		}
	}
	return out
}
