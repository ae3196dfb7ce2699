package gitgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/hostexec"
)

// maxClone bounds the pack of a fetch into a repository of carboy's own, in bytes.
const maxClone = 16 << 30

// Fetched holds what upstream has of the references that were asked for.
type Fetched struct {
	Format string            // "sha1" or "sha256"
	Refs   map[string]string // commits by reference; one that upstream does not have is missing
}

// Refs asks upstream for the commits of references, such as refs/heads/main.
func (g *Gate) Refs(ctx context.Context, name string, refs ...string) (*Fetched, error) {
	rp, leave, err := g.own(name, refs)
	if err != nil {
		return nil, err
	}
	defer leave()
	up, err := g.list(ctx, rp, uploadPack, 2)
	if err != nil {
		return nil, err
	}
	out := &Fetched{up.format, map[string]string{}}
	lines := up.lines
	if up.v == 2 {
		if lines, err = g.listRefs(ctx, rp, up, refs); err != nil {
			return nil, err
		}
	}
	for _, l := range lines {
		id, ref, _ := strings.Cut(l, " ")
		ref, _, _ = strings.Cut(ref, " ") // attributes follow
		if slices.Contains(refs, ref) && isID(id) && len(id) == idLen(up.format) && !isZero(id) {
			out.Refs[ref] = id
		}
	}
	return out, nil
}

// own returns a repository for carboy's own use, and admits the exchange.
func (g *Gate) own(name string, refs []string) (rp *repo, leave func(), err error) {
	if rp = g.repos[name]; rp == nil {
		return nil, nil, errors.New("the bottle declares no such repository")
	}
	for _, r := range refs {
		if err := checkRef(r); err != nil {
			return nil, nil, err
		}
	}
	leave, err = g.enter()
	return rp, leave, err
}

// listRefs asks for references in protocol version 2.
func (g *Gate) listRefs(ctx context.Context, rp *repo, up *offer, refs []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience*g.cfg.Limits.Idle)
	defer cancel()
	req := appendLine(nil, "command=ls-refs\n")
	if slices.ContainsFunc(up.lines, func(l string) bool { return strings.HasPrefix(l, "object-format=") }) {
		req = appendLine(req, "object-format=", up.format, "\n")
	}
	req = append(req, "0001"...)
	for _, r := range refs {
		req = appendLine(req, "ref-prefix ", r, "\n")
	}
	req = appendFlush(req)
	r, err := rp.up.call(ctx, uploadPack, 2, bytes.NewReader(req), int64(len(req)))
	if err != nil {
		return nil, &upstreamError{"list", timely(ctx, err)}
	}
	in := bound(r, g.cfg.Limits.Advert, g.cfg.Limits.Idle, cancel)
	defer in.Close()
	var lines []string
	for l := newLineReader(in); ; {
		k, line, err := l.next()
		text := chomp(line)
		switch msg, bad := strings.CutPrefix(text, "ERR "); {
		case err != nil:
			return nil, &upstreamError{"list", noEOF(err)}
		case k == flush:
			return lines, nil
		case bad:
			return nil, &upstreamError{"list", fmt.Errorf("it says %q", msg)}
		case k == data:
			lines = append(lines, text)
		}
	}
}

// Fetch brings commits of upstream, with all that leads to them, into a repository that
// carboy made: dir is its git directory. It is the way by which bottles fetch: the same
// keys, pins and bounds. git checks each object as for a push, but lets old faults pass.
// have are commits that are there already, with all that leads to them. Nothing in dir but
// its objects changes, and no program that a repository names runs.
func (g *Gate) Fetch(ctx context.Context, name, dir string, want, have []string) error {
	rp, leave, err := g.own(name, nil)
	if err != nil {
		return err
	}
	defer leave()
	want = slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(have, id) })
	if len(want) == 0 {
		return nil
	}
	ev := Event{Start: time.Now(), Repo: name, Op: "fetch", Verdict: Done}
	err = g.fetchInto(ctx, rp, dir, want, have, &ev.Out)
	if err != nil {
		ev.Verdict, ev.Reason = Failed, err.Error()
	}
	g.observe(ev)
	return err
}

func (g *Gate) fetchInto(ctx context.Context, rp *repo, dir string, want, have []string, n *int64) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Limits.Time)
	defer cancel()
	up, err := g.list(ctx, rp, uploadPack, 2)
	if err != nil {
		return err
	}
	req := wantObjects(up, want, exactly, have...)
	r, err := rp.up.call(ctx, uploadPack, up.v, bytes.NewReader(req), int64(len(req)))
	if err != nil {
		return &upstreamError{"fetch", timely(ctx, err)}
	}
	in := bound(r, min(maxClone, g.cfg.Limits.Fetch), g.cfg.Limits.Idle, cancel)
	defer in.Close()
	var pack io.Reader = &counted{&fetchedPack{l: newLineReader(in)}, n}
	c, err := startProgram(ctx, g.cfg.Git, hostexec.GitLand, dir, g.cfg.Limits.Check, pack, "pack", "old", strconv.Itoa(maxClone))
	if err != nil {
		return err
	}
	_, readErr := readAll(c, 1<<20)
	_ = c.Close()
	if fed := <-c.fed; fed != nil {
		return &upstreamError{"fetch", fed}
	}
	if readErr != nil {
		return fmt.Errorf("git does not take what upstream sent: %w", readErr)
	}
	return nil
}
