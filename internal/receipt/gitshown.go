package receipt

import (
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
)

// lead sums up the git gate in a sentence.
func (g *Git) lead() string {
	var fetches, failed, pushes, refused, broken int64
	for _, r := range g.Repos {
		fetches, failed = fetches+r.Fetches, failed+r.FetchesFailed
		pushes, refused, broken = pushes+r.Pushes, refused+r.PushesRefused, broken+r.PushesFailed
	}
	parts := []string{count(int64(len(g.Repos)), "repository", "repositories")}
	add := func(n int64, one, many string) {
		if n > 0 {
			parts = append(parts, count(n, one, many))
		}
	}
	add(fetches, "answer of upstream", "answers of upstream")
	add(failed, "fetch failed", "fetches failed")
	add(pushes, "push", "pushes")
	add(refused, "push refused", "pushes refused")
	add(broken, "push failed", "pushes failed")
	return strings.Join(parts, ", ")
}

// what describes in a line what a push did, or would have done.
func (x *Push) what() string {
	const shown = 4
	var parts []string
	for i, r := range x.Refs {
		if i == shown {
			break
		}
		s := safetext.String(string(r.Name), 200)
		switch {
		case r.New == "":
			s += " deleted"
		case r.Old == "":
			s += " new " + object(r.New)
		default:
			s += " " + object(r.Old) + ".." + object(r.New)
		}
		if r.Result != "" && r.Result != "ok" {
			s += " (" + safetext.String(r.Result, 120) + ")"
		}
		parts = append(parts, s)
	}
	if n := x.RefsTotal - int64(len(parts)); n > 0 {
		parts = append(parts, number(n)+" more")
	}
	return strings.Join(parts, ", ")
}

func object(s string) string {
	s = safetext.String(s, 64)
	return s[:min(len(s), 12)]
}

// counts describes the size of a push.
func (x *Push) counts() string {
	return count(x.CommitsTotal, "commit", "commits") + ", " + count(x.Objects, "object", "objects") + ", " + Bytes(x.Scanned) + " looked through"
}

// text describes the finding, its place, and the person's answer.
func (f *PushFound) text() string {
	s := f.Rule
	if f.Secret != "" {
		s += " " + f.Secret
	}
	if f.Transform != "" && f.Transform != "plain" {
		s += " as " + f.Transform
	}
	s += " in " + f.Where
	if f.File != "" {
		s += " " + safetext.Path([]byte(f.File))
	}
	if f.Line > 0 {
		s += fmt.Sprintf(":%d", f.Line)
	}
	if f.Commit != "" {
		s += ", commit " + object(f.Commit)
	}
	if f.Allow != "" {
		s += "; asked: " + f.Allow
	}
	return safetext.String(s, maxShown)
}

func (v PushVerdict) color() color {
	return map[PushVerdict]color{Pushed: green, PushRefused: red}[v]
}

// git prints the section of the git gate.
func (p *printer) git(r *Receipt) {
	g := r.Git
	if g == nil {
		return
	}
	p.section("Git", g.lead())
	shown := p.list(len(g.Pushes), func(i int) {
		x := &g.Pushes[i]
		p.item(x.Verdict.color(), string(x.Verdict), plain, safetext.String(x.Repo, 100)+": "+x.what())
		p.item(plain, "", dim, x.counts())
		if x.Reason != "" {
			p.item(plain, "", plain, safetext.String(x.Reason, maxShown))
		}
		n := p.list(len(x.Found), func(j int) { p.item(plain, "", red, x.Found[j].text()) })
		p.more(n, x.FoundTotal, "findings")
	})
	p.more(shown, g.PushesTotal, "")
	p.list(len(g.Keys), func(i int) {
		k := g.Keys[i]
		c, text := plain, safetext.String(k.Title, 200)+", "+safetext.String(k.Fingerprint, 80)
		if k.State == KeyLeft {
			c, text = red, text+": "+safetext.String(k.Error, 300)+"; remove it at "+safetext.String(k.RemoveAt, 300)
		}
		p.item(c, "key "+string(k.State), c, text)
	})
}

// gitSection returns the same section for the page.
func gitSection(g *Git) section {
	s := section{ID: "git", Title: "Git", Lead: g.lead() + "."}
	repos := table{Caption: "Repositories that the git gate served", Head: []string{"Name", "Upstream", "Answers", "Pushes", "Refused", "Up", "Down"}}
	for _, r := range g.Repos {
		class := ""
		if r.PushesRefused > 0 {
			class = "bad"
		}
		repos.Rows = append(repos.Rows, line{class, []cell{insideCell(r.Name), pathCell(r.URL), counted(r.Fetches), counted(r.Pushes), counted(r.PushesRefused), sized(r.BytesUp), sized(r.BytesDown)}})
	}
	pushes := table{Caption: "Pushes", Head: []string{"Verdict", "Repository", "References", "What", "Why"}, Rest: rest(len(g.Pushes), g.PushesTotal)}
	found := table{Caption: "Found in pushes", Head: []string{"Push", "Repository", "What and where"}}
	for i := range g.Pushes {
		x := &g.Pushes[i]
		class := map[PushVerdict]string{Pushed: "ok", PushRefused: "bad", PushFailed: "warn"}[x.Verdict]
		pushes.Rows = append(pushes.Rows, line{class, []cell{said(string(x.Verdict)), insideCell(x.Repo), insideCell(x.what()), said(x.counts()), insideCell(x.Reason)}})
		for j := range x.Found {
			found.Rows = append(found.Rows, line{class, []cell{counted(int64(i + 1)), insideCell(x.Repo), insideCell(x.Found[j].text())}})
		}
	}
	keys := table{Caption: "Deploy keys", Head: []string{"State", "Title", "Fingerprint", "Why, and where it is removed"}}
	for _, k := range g.Keys {
		class := ""
		if k.State == KeyLeft {
			class = "bad"
		}
		keys.Rows = append(keys.Rows, line{class, []cell{said(string(k.State)), said(k.Title), said(k.Fingerprint), said(strings.TrimSpace(k.Error + " " + k.RemoveAt))}})
	}
	s.Tables = filled(pushes, found, repos, keys)
	return s
}
