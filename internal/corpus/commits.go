package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/corpus/attacker"
)

// commits lands what an attacker left in git repositories of the workspace. A branch that
// goes forward with an honest commit is the control.
func (h *home) commits() error {
	tips := map[string]string{}
	for _, name := range attacker.Repositories {
		g := attacker.Git{Dir: h.ws + "/" + name + "/.git"}
		tip := g.Commit(g.Tree("100644 a.txt="+g.Object("blob", "one\n")), "", "A", "first")
		for file, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "config": "[core]\n\trepositoryformatversion = 0\n", "refs/heads/main": tip + "\n", "refs/tags/v1": tip + "\n", "objects/pack/none": "", "../a.txt": "one\n"} {
			g.File(file, text)
		}
		if g.Err != nil {
			return g.Err
		}
		tips[name] = tip
	}
	before := h.repositories()
	r := h.bottle(false, nil, attacker.Path, "commits")
	switch {
	case r.rec == nil:
		return r.err
	case !strings.Contains(r.out, "committed"):
		return fmt.Errorf("the commits ended with %s: %.500s", r.ended(), r.msg)
	}
	refs, err := h.client.Refs(h.ctx, r.rec.ID)
	if err != nil {
		return err
	}
	if err := h.commitTexts(r, refs); err != nil {
		return err
	}
	if _, err := h.client.Land(h.ctx, r.rec.ID, change.LandOptions{}); err != nil {
		return err
	}
	moved := func(name string) bool {
		b, err := os.ReadFile(h.ws + "/" + name + "/.git/refs/heads/main")
		return err != nil || strings.TrimSpace(string(b)) != tips[name]
	}
	for _, name := range []string{"honest", "references"} {
		if !moved(name) {
			return errors.New("an honest commit did not land; is git installed?")
		}
	}
	if moved("hidden") {
		h.escape("landing/hidden-commits", "a commit with a file that the host trusts landed, and nobody included it")
	}
	after := h.repositories()
	if moved("forged") || before["forged"] != after["forged"] {
		h.escape("landing/forged-objects", "the host's repository took forged objects: "+difference(before["forged"], after["forged"]))
	}
	if before["references"] != after["references"] {
		h.escape("landing/references", "more than the branch landed: "+difference(before["references"], after["references"]))
	}
	shown := slices.ContainsFunc(refs, func(c change.RefChange) bool {
		return c.ID() == "crowd/.git/refs/heads/main" && len(c.Unseen()) == 1 && bytes.Contains([]byte(c.Patch), []byte("owned by the vandal"))
	})
	switch {
	case !moved("crowd"):
		h.note("landing/crowd", untried("the branch did not land"))
	case !shown:
		h.escape("landing/crowd", "a file that only the commit has landed, and was not shown")
	}
	if _, err := h.client.Land(h.ctx, r.rec.ID, change.LandOptions{IncludeProtected: true}); err != nil {
		return err
	}
	if !moved("hidden") {
		h.note("landing/hidden-commits", untried("the commit does not land when a person includes it"))
	}
	if moved("harmful") {
		h.escape("landing/harmful-trees", "a tree that names what is above it landed")
	}
	h.done("landing/hidden-commits", "landing/forged-objects", "landing/references", "landing/crowd", "landing/harmful-trees", "terminal-text/commits")
	return nil
}

// commitTexts checks what people are shown of commits.
func (h *home) commitTexts(r *ran, refs []change.RefChange) error {
	const id = "terminal-text/commits"
	var shown bytes.Buffer
	if _, err := h.client.Diff(h.ctx, r.rec.ID, &shown, change.DiffOptions{Refs: refs}); err != nil {
		return err
	}
	if !strings.Contains(shown.String(), `honest work \x1b]0;owned`) {
		h.note(id, untried("the commit is not shown: this looks in the wrong place"))
	}
	if bad := unseen(shown.String()); bad != "" {
		h.escape(id, "a terminal would be sent "+bad)
	}
	return nil
}

// repositories describes the git directories of the host, without what an honest commit
// changes.
func (h *home) repositories() map[string]string {
	all := map[string]string{}
	for _, name := range attacker.Repositories {
		text, err := Tree(h.ws + "/" + name + "/.git")
		if err != nil {
			text = err.Error()
		}
		all[name] = strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return strings.Contains(line, "/objects/pack") || strings.Contains(line, "/index") || strings.Contains(line, "/refs/heads/main ") || strings.Contains(line, "/logs")
		}), "\n")
	}
	return all
}
