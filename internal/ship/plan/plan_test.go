package plan

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ship/module"
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
		"action":  func(p *Plan) { p.Changes[0].Action = "explode" },
		"schema":  func(p *Plan) { p.Schema = "carboy.dev/ship-plan/v2" },
		"module":  func(p *Plan) { p.Module = "../web" },
		"wave":    func(p *Plan) { p.Wave = module.MaxWaves + 1 },
		"life":    func(p *Plan) { p.Expires = p.Created.Add(MaxLife + time.Second) },
		"times":   func(p *Plan) { p.Target.Health = p.Target.StableFor },
		"files":   func(p *Plan) { p.Source.Files = make([]File, MaxFiles+1) },
		"size":    func(p *Plan) { p.By = strings.Repeat("x", MaxSize) },
		"known":   func(p *Plan) { p.Previous = Previous{State: PreviousKnown, Compose: "services: {}"} },
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

// TestKnownPrevious: a plan whose previous state is known reads back as it was written.
func TestKnownPrevious(t *testing.T) {
	p := some()
	p.Previous = Previous{State: PreviousKnown, Commit: strings.Repeat("c", 40), Compose: "services: {}", Image: "app:v0", ImageID: "sha256:" + strings.Repeat("d", 64), Ran: true}
	p.Changes = append(p.Changes, Change{What: "file.a", Action: Remove, Destructive: true})
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Decode(b)
	if err != nil || got.Previous != p.Previous || !got.Destructive() || some().Destructive() {
		t.Errorf("%+v %v", got, err)
	}
	if _, _, err := Decode(make([]byte, MaxSize+1)); err == nil {
		t.Error("a plan of any size is taken")
	}
}

func TestObserve(t *testing.T) {
	id, sum := "sha256:"+strings.Repeat("1", 64), strings.Repeat("2", 64)
	head := "carboy-observed 1\n"
	text := head + "image " + id + "\ncontainer " + sum + " " + id + " " + sum + " running unhealthy 3\nfile " + sum + " a/b\nfile - c\ncurrent 100001-" + sum + "\n"
	o, err := Observe(text)
	if err != nil {
		t.Fatal(err)
	}
	if o.Image != id || len(o.Containers) != 1 || o.Containers[0].Status != "running" || o.Containers[0].Restarts != "3" || o.Files["a/b"] != sum || o.Files["c"] != "-" || o.Current != "100001-"+sum {
		t.Errorf("%+v", o)
	}
	for _, bad := range []string{"", "carboy-observed 2\n", head + "image x\n", head + "container " + sum + "\n", head + "file a\n", head + "current\n", head + "more\n"} {
		if _, err := Observe(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	p := some()
	p.Seen.Text, p.Changes = text, nil
	if p.Action() != none || !strings.Contains(p.Ailing(), "unhealthy") {
		t.Errorf("action %s, %q", p.Action(), p.Ailing())
	}
	for _, text := range []string{strings.Replace(text, "unhealthy", "healthy", 1), "damaged"} {
		if p.Seen.Text = text; p.Ailing() != "" {
			t.Errorf("%q: %q", text, p.Ailing())
		}
	}
}

// TestSame: a host with another address, user or key is not the plan's.
func TestSame(t *testing.T) {
	var keys []ssh.PublicKey
	var prints []string
	for range 3 {
		pub, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := ssh.NewPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		keys, prints = append(keys, key), append(prints, ssh.FingerprintSHA256(key))
	}
	prints = prints[:2]
	slices.Sort(prints)
	h := Host{"one", "h", 22, "u", prints}
	for _, x := range []struct {
		address string
		port    int
		user    string
		keys    []ssh.PublicKey
		says    string
	}{
		{"h", 22, "u", keys[:2], ""}, {"h", 22, "u", []ssh.PublicKey{keys[1], keys[0]}, ""}, {"i", 22, "u", keys[:2], "address"}, {"h", 23, "u", keys[:2], "address"},
		{"h", 22, "v", keys[:2], "user"}, {"h", 22, "u", keys, "keys"}, {"h", 22, "u", keys[1:], "keys"}, {"h", 22, "u", nil, "keys"},
	} {
		if got := h.Same(x.address, x.port, x.user, x.keys); (got == "") != (x.says == "") || !strings.Contains(got, x.says) {
			t.Errorf("%+v: %q", x, got)
		}
	}
}

func TestValid(t *testing.T) {
	for s, want := range map[string][2]bool{strings.Repeat("a", 40): {true, true}, "HEAD": {false, true}, "app:v1": {false, true}, "a@sha256:" + strings.Repeat("1", 64): {false, true}, "-v": {}, "a b": {}, "": {}} {
		if got := [2]bool{ValidCommit(s), ValidImage(s)}; got != want {
			t.Errorf("%q: a commit, an image: %v, want %v", s, got, want)
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
