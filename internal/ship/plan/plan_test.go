package plan

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func some() *Plan {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text := "carboy-observed 1\nimage -\ncurrent -\n"
	sum := strings.Repeat("a", 64)
	return &Plan{Schema: Schema, Kind: Apply, Module: "web", Host: Host{"one", "h", 22, "u", []string{"SHA256:x"}}, Wave: 1, Commit: strings.Repeat("b", 40), Clean: true, Created: now, Expires: now.Add(time.Hour), By: "me",
		Source: Source{File{"modules/web/module.yaml", sum, 1, false}, File{"modules/web/c.yaml", sum, 1, false}, []File{{"a", sum, 1, true}}},
		Target: Target{Project: "web", Service: "web", Root: "/srv/web", Binds: []string{"/srv/web/a"}, Image: "app:v1", ImageID: "-", ConfigHash: sum, StableFor: 1, Health: 2},
		Seen:   Seen{text, Digest([]byte(text))}, Changes: []Change{{What: "compose.service.web", Action: Create, From: "-", To: "x"}}, Previous: Previous{State: PreviousNone}}
}

// TestP1Spelling: a plan has one spelling, and only what carboy could have made is one.
func TestP1Spelling(t *testing.T) {
	b, err := some().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if p, d, err := Decode(b); err != nil || d != Digest(b) || p.Action() != Create {
		t.Fatal(p, d, err)
	}
	for name, x := range map[string][]byte{
		"spaces":        bytes.Replace(b, []byte(`"wave": 1`), []byte(`"wave":  1`), 1),
		"a key twice":   bytes.Replace(b, []byte(`"wave": 1`), []byte(`"wave": 2, "wave": 1`), 1),
		"another case":  bytes.Replace(b, []byte(`"wave"`), []byte(`"Wave"`), 1),
		"a further key": bytes.Replace(b, []byte(`"wave": 1`), []byte(`"wave": 1, "also": 1`), 1),
		"an escape":     bytes.Replace(b, []byte(`"web"`), []byte(`"\u0077eb"`), 1),
		"a second one":  append(bytes.Clone(b), b...),
		"its half":      b[:len(b)/2],
	} {
		if _, _, err := Decode(x); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for name, change := range map[string]func(*Plan){
		"seen":    func(p *Plan) { p.Seen.Text += "x" },
		"root":    func(p *Plan) { p.Target.Root = "/srv/../etc" },
		"bind":    func(p *Plan) { p.Target.Binds = []string{"/etc"} },
		"file":    func(p *Plan) { p.Source.Files[0].Path = "../x" },
		"image":   func(p *Plan) { p.Target.Image = "-v" },
		"project": func(p *Plan) { p.Target.Project = "-p" },
		"kind":    func(p *Plan) { p.Kind = "" },
		"commit":  func(p *Plan) { p.Commit = "HEAD" },
		"before":  func(p *Plan) { p.Previous.State = "" },
		"expires": func(p *Plan) { p.Expires = p.Created },
		"address": func(p *Plan) { p.Host.Address = "h\x1b[5A" },
		"user":    func(p *Plan) { p.Host.User = "u\u009b5A" },
		"port":    func(p *Plan) { p.Host.Port = 0 },
		"volume":  func(p *Plan) { p.Target.Volumes = []string{"../x"} },
		"nothing": func(p *Plan) { p.Previous.Compose = "services: {}" },
		"keys":    func(p *Plan) { p.Host.Keys = nil },
		"other":   func(p *Plan) { p.Changes[0].What = "compose.service.db" },
	} {
		p := some()
		change(p)
		if _, err := p.Encode(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestBack: people read what a service sees, and where its host goes when it goes wrong.
func TestBack(t *testing.T) {
	p := some()
	p.Target.Project, p.Target.Volumes = "prod-db", []string{"data"}
	if got := strings.Join(p.Mounts(), ", "); got != "/srv/web/a, volume prod-db_data" {
		t.Errorf("mounts %s", got)
	}
	for want, v := range map[string]Previous{
		"no service":            {State: PreviousNone},
		"not known":             {State: PreviousUnknown},
		"commit bbbbbbbbbbbb w": {State: PreviousKnown, Commit: strings.Repeat("b", 40), Ran: true},
		"not well now":          {State: PreviousKnown, Commit: strings.Repeat("b", 40)},
	} {
		p.Previous = v
		if got := p.Back(); !strings.Contains(got, want) || v.Ran && strings.Contains(got, "not well") {
			t.Errorf("%+v: back to %s, want %s", v, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, err := some().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, err := Decode(b)
		if err != nil {
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q is spelt %q (%v)", b, again, err)
		}
		Observe(p.Seen.Text)
	})
}
