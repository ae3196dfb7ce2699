package ship

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// paper is a world whose host only counts connections.
type paper struct {
	*world
	knocks  atomic.Int32
	entry   string
	sources map[string]*source // by commit: git takes most of the time
}

// source loads the module at a commit, once.
func (p *paper) source(commit string) (*source, error) {
	if s, ok := p.sources[commit]; ok {
		return s, nil
	}
	s, err := p.e.load(p.ctx(), "web", commit)
	if err == nil {
		if p.sources == nil {
			p.sources = map[string]*source{}
		}
		p.sources[commit] = s
	}
	return s, err
}

const someImage = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func newPaper(t *testing.T) *paper {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &paper{world: &world{t: t, op: shiptest.NewOperator(t), repo: shiptest.NewRepo(t)}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.knocks.Add(1)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	pub, _ := shiptest.NewKey(t, t.TempDir()+"/host")
	p.entry = fmt.Sprintf("hosts:\n  one:\n    address: 127.0.0.1\n    port: %d\n    user: deploy\n    host_keys: [%q]\n    key: %s\n    allowed_roots: [/srv]\n    sacred_paths: [/srv/db]\n    apply: true\n", l.Addr().(*net.TCPAddr).Port, pub, p.op.Key)
	p.op.Write(t, "hosts.yaml", p.entry)
	p.module("/srv/web")
	p.e = p.engine()
	return p
}

func (p *paper) module(root string) {
	p.t.Helper()
	p.repo.Write(p.t, "modules/web/module.yaml", shiptest.Module("web", root, "one"))
	p.repo.Write(p.t, "modules/web/compose.yaml", shiptest.Compose("web", "v1", "ok"))
	p.repo.Commit(p.t)
}

// draw returns the plan for a host without the service, after change.
func (p *paper) draw(change func(*plan.Plan)) Made {
	p.t.Helper()
	commit, clean, err := p.e.head(p.ctx())
	if err != nil {
		p.t.Fatal(err)
	}
	s, err := p.source(commit)
	if err != nil {
		p.t.Fatal(err)
	}
	_, h, err := p.e.host("one")
	if err != nil {
		p.t.Fatal(err)
	}
	text := "carboy-observed 1\nimage " + someImage + "\ncurrent -\n"
	now := time.Now().UTC().Truncate(time.Second)
	d := &plan.Plan{Schema: plan.Schema, Kind: plan.Apply, Module: "web", Wave: 1, Commit: commit, Clean: clean, By: "tests", Created: now, Expires: now.Add(time.Hour),
		Host:   plan.Host{Name: "one", Address: h.Address, Port: h.Port, User: h.User, Keys: h.Fingerprints()},
		Source: s.desc, Seen: plan.Seen{Text: text, SHA256: plan.Digest([]byte(text))}, Previous: plan.Previous{State: plan.PreviousNone},
		Target: plan.Target{Project: "web", Service: "web", Root: s.module.Root, Binds: []string{}, Image: "app:v1", ImageID: someImage, ConfigHash: strings.Repeat("2", 64), ComposeVersion: "5", StableFor: 1, StableChecked: 1, Health: 60}}
	obs, err := plan.Observe(text)
	if err != nil {
		p.t.Fatal(err)
	}
	d.Changes = changes(d, obs, s.module, nil)
	if change != nil {
		change(d)
	}
	b, err := d.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	return Made{d, b, plan.Digest(b)}
}

// refused applies plans, which must fail with want before the host is connected to.
func (p *paper) refused(name string, want Outcome, plans [][]byte, a ...approval.Signed) {
	p.t.Helper()
	before := p.knocks.Load()
	r, err := p.e.Apply(p.ctx(), plans, a)
	if got := outcomeOf(r, err); got != want {
		p.t.Errorf("%s: %s (%v), want %s", name, got, err, want)
	}
	if p.knocks.Load() != before {
		p.t.Errorf("%s: the host was connected to", name)
	}
}

// reaches applies a plan, which must connect to the host.
func (p *paper) reaches(name string, m Made, a ...approval.Signed) {
	p.t.Helper()
	before := p.knocks.Load()
	r, err := p.e.Apply(p.ctx(), [][]byte{m.Bytes}, a)
	if outcomeOf(r, err) != Failed || !errors.Is(err, remote.ErrUnreachable) || p.knocks.Load() == before {
		p.t.Errorf("%s: %v, and the host was not connected to", name, err)
	}
}

// TestP1Plans: a plan that is not of this commit and host is refused before any
// connection.
func TestP1Plans(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	good := p.draw(nil)
	a := p.approve("alice", false, good)
	p.reaches("the plan itself", good, a)

	one := func(m Made) [][]byte { return [][]byte{m.Bytes} }
	edited := []byte(strings.Replace(string(good.Bytes), "/srv/web", "/srv/wob", 1))
	p.refused("an edited plan", Mismatch, [][]byte{edited}, a)
	p.refused("a formatted plan", Mismatch, [][]byte{append(good.Bytes[:len(good.Bytes):len(good.Bytes)], '\n')}, a)
	p.refused("no plan", Refused, nil, a)
	p.refused("a plan twice", Refused, [][]byte{good.Bytes, good.Bytes}, a)
	other := p.draw(func(d *plan.Plan) { d.Module = "db" })
	p.refused("two modules", Refused, [][]byte{good.Bytes, other.Bytes}, a)

	// Plans that were written by hand and approved by mistake: the commit decides.
	for name, change := range map[string]func(*plan.Plan){
		"root":    func(d *plan.Plan) { d.Target.Root = "/srv/other" },
		"project": func(d *plan.Plan) { d.Target.Project = "other" },
		"image":   func(d *plan.Plan) { d.Target.Image = "evil:v1" },
		"id":      func(d *plan.Plan) { d.Target.ImageID = "sha256:" + strings.Repeat("3", 64) },
		"compose": func(d *plan.Plan) { d.Source.Compose.SHA256 = strings.Repeat("4", 64) },
		"binds":   func(d *plan.Plan) { d.Target.Binds = []string{"/srv/web/x"} },
		"volume":  func(d *plan.Plan) { d.Target.Volumes = []string{"data"} },
		"health":  func(d *plan.Plan) { d.Target.Health = 1000 },
		"wave":    func(d *plan.Plan) { d.Wave = 2 },
		"changes": func(d *plan.Plan) { d.Changes = []plan.Change{} },
	} {
		m := p.draw(change)
		p.refused("another "+name, Mismatch, one(m), p.approve("alice", false, m))
	}
	m := p.draw(func(d *plan.Plan) { d.Target.Root = "/srv/db" })
	p.refused("a sacred path", Refused, one(m), p.approve("alice", false, m))
	m = p.draw(func(d *plan.Plan) { d.Target.Root = "/etc" })
	p.refused("a path outside", Refused, one(m), p.approve("alice", false, m))
	m = p.draw(func(d *plan.Plan) { d.Created, d.Expires = d.Created.Add(-2*time.Hour), d.Expires.Add(-2*time.Hour) })
	p.refused("an old plan", Stale, one(m), p.approve("alice", false, m))
	m = p.draw(func(d *plan.Plan) { d.Host.Keys = []string{"SHA256:other"} })
	p.refused("another host key", Stale, one(m), p.approve("alice", false, m))
	m = p.draw(func(d *plan.Plan) { d.Host.Name = "two" })
	p.refused("a host that is not listed", Refused, one(m), p.approve("alice", false, m))

	p.repo.Write(t, "untracked", "x")
	p.refused("a work tree with something else", Refused, one(good), a)
	os.Remove(filepath.Join(p.repo.Dir, "untracked"))
	p.op.Write(t, "hosts.yaml", strings.Replace(p.entry, "apply: true", "apply: false", 1))
	p.refused("a host that may not be changed", Refused, one(good), a)
	os.Remove(filepath.Join(p.op.Config, "hosts.yaml"))
	p.refused("no hosts.yaml", Refused, one(good), a)
	p.op.Write(t, "hosts.yaml", p.entry)
	if err := os.Chmod(filepath.Join(p.op.Config, "hosts.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	p.refused("a hosts.yaml of everybody", Refused, one(good), a)
	os.Chmod(filepath.Join(p.op.Config, "hosts.yaml"), 0o600)
	p.repo.Write(t, "README", "x")
	p.repo.Commit(t)
	p.refused("another commit", Refused, one(good), a)
	p.repo.Git(t, "reset", "-q", "--hard", "HEAD~1")
	p.reaches("the plan itself, at the end", good, a)
}

// TestP2Unreached: a host that cannot be spoken with and one that is not allowed are
// different outcomes, whoever asks.
func TestP2Unreached(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	ask := func() (all [3]Outcome) {
		_, err := p.e.Plan(p.ctx(), PlanOptions{Module: "web"})
		all[0] = outcomeOf(nil, err)
		if st, err := p.e.Status(p.ctx(), "web"); err == nil {
			all[1] = outcomeOf(nil, st[0].Err)
		}
		if _, problems, err := p.e.History(p.ctx(), "web"); err == nil && len(problems) == 1 {
			all[2] = outcomeOf(nil, problems[0])
		}
		return all
	}
	if got := ask(); got != [3]Outcome{Failed, Failed, Failed} || p.knocks.Load() == 0 {
		t.Errorf("a host that hangs up: %v", got)
	}
	p.op.Write(t, "hosts.yaml", strings.Replace(p.entry, "  one:", "  two:", 1))
	if got := ask(); got != [3]Outcome{Refused, Refused, Refused} {
		t.Errorf("a host that is not listed: %v", got)
	}
	os.Remove(filepath.Join(p.op.Config, "hosts.yaml"))
	if got := ask(); got != [3]Outcome{Refused, Refused, Refused} {
		t.Errorf("no hosts.yaml: %v", got)
	}
}

// TestOtherServices: a plan that touches another service is none.
func TestOtherServices(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	d := p.draw(nil).Plan
	for _, what := range []string{"compose.service.db", "file.../x", "file.x", "host", ""} {
		e := *d
		e.Changes = append([]plan.Change{{What: what, Action: plan.Update}}, d.Changes...)
		if _, err := e.Encode(); err == nil {
			t.Errorf("a plan with a change of %q", what)
		}
	}
	if _, err := d.Encode(); err != nil {
		t.Error(err)
	}
}

// TestH2Approvals: an approval is of exactly one plan, by somebody who may, in time.
func TestH2Approvals(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	one := [][]byte{m.Bytes}
	sign := func(who string, change func(*approval.Statement)) approval.Signed {
		s := approval.New([]string{m.Digest}, m.Commit, m.Module, who+"@example.org", "a test", false, time.Now())
		if change != nil {
			change(&s)
		}
		out, err := approval.Sign(s, p.op.People[who])
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	good := sign("alice", nil)
	p.refused("no approval", Mismatch, one)
	other := p.draw(func(d *plan.Plan) { d.By = "somebody else" })
	p.refused("of another plan", Mismatch, one, p.approve("alice", false, other))
	p.refused("of another commit", Mismatch, one, sign("alice", func(s *approval.Statement) { s.Commit = strings.Repeat("0", 40) }))
	p.refused("of another module", Mismatch, one, sign("alice", func(s *approval.Statement) { s.Module = "db" }))
	p.refused("in the name of somebody else", Mismatch, one, sign("alice", func(s *approval.Statement) { s.Approver = "bob@example.org" }))
	p.refused("of the future", Mismatch, one, sign("alice", func(s *approval.Statement) { s.Time = s.Time.Add(time.Hour) }))
	p.refused("from before the plan", Mismatch, one, sign("alice", func(s *approval.Statement) { s.Time = s.Time.Add(-time.Hour) }))
	_, stranger := shiptest.NewKey(t, t.TempDir()+"/k")
	bad, err := approval.Sign(approval.New([]string{m.Digest}, m.Commit, m.Module, "alice@example.org", "a test", false, time.Now()), stranger)
	if err != nil {
		t.Fatal(err)
	}
	p.refused("by a stranger's key", Mismatch, one, bad)
	changed := good
	changed.Statement = []byte(strings.Replace(string(good.Statement), "a test", "a jest", 1))
	p.refused("edited after signing", Mismatch, one, changed)
	changed = good
	changed.Signature = sign("bob", nil).Signature
	p.refused("with another's signature", Mismatch, one, changed)
	p.reaches("a good one", m, good)

	two := strings.Replace(p.entry, "apply: true", "apply: true\n    approvals: 2", 1)
	p.op.Write(t, "hosts.yaml", two)
	p.refused("one of two", Mismatch, one, good)
	p.refused("the same twice", Mismatch, one, good, good)
	p.refused("of the same person twice", Mismatch, one, good, sign("alice", nil))
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(p.op.People["alice"].PublicKey())))
	signers := readFile(t, p.op.Config+"/allowed_signers")
	p.op.Write(t, "allowed_signers", signers+"carol@example.org "+key+"\n")
	p.refused("with one key under two names", Mismatch, one, good, sign("alice", func(s *approval.Statement) { s.Approver = "carol@example.org" }))
	p.reaches("two of two", m, good, sign("bob", nil))
	// Any two of three, and nobody who is not one of them.
	p.reaches("another two of three", m, sign("carol", nil), good)
	p.op.People["dave"] = stranger
	p.refused("with an unknown third", Mismatch, one, good, sign("dave", nil))
	second, again := shiptest.NewKey(t, t.TempDir()+"/k")
	p.op.People["alice again"] = again
	p.op.Write(t, "allowed_signers", signers+"alice@example.org "+second+"\n")
	p.refused("of one person with two keys", Mismatch, one, good, sign("alice again", func(s *approval.Statement) { s.Approver = "alice@example.org" }))
	p.op.Write(t, "allowed_signers", signers)
	p.op.Write(t, "hosts.yaml", strings.Replace(two, "approvals: 2", "approvals: 3", 1))
	p.refused("two of three who all must", Mismatch, one, good, sign("bob", nil), good)
	p.reaches("three of three", m, good, sign("bob", nil), sign("carol", nil))
	p.op.Write(t, "hosts.yaml", p.entry)
	p.op.Write(t, "allowed_signers", strings.ReplaceAll(signers, "carboy-ship@", "file@"))
	p.refused("by a key for files", Mismatch, one, good)
	os.Remove(p.op.Config + "/allowed_signers")
	p.refused("without allowed_signers", Mismatch, one, good)

	p.op.Write(t, "allowed_signers", signers)
	p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/srv/web", "one")+"    destructive: [create]\n")
	p.repo.Commit(t)
	m = p.draw(nil)
	p.refused("of what destroys, without the word", Destructive, [][]byte{m.Bytes}, p.approve("alice", false, m))
	p.refused("of what destroys, without the word, beside another's", Destructive, [][]byte{m.Bytes}, p.approve("alice", false, m), good)
	p.reaches("with the word", m, p.approve("alice", true, m))
}

// TestP1InRepository: a repository brings along neither hosts nor signers nor records.
func TestP1InRepository(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	inside := p.repo.Dir + "/conf"
	if err := os.CopyFS(inside, os.DirFS(p.op.Config)); err != nil {
		t.Fatal(err)
	}
	open := func(config, state string) error {
		e := &Engine{Config: config, State: state, Repo: p.repo.Dir}
		err := e.Open()
		if err == nil {
			e.Close()
		}
		return err
	}
	link := func(to string) string {
		name := t.TempDir() + "/link"
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if err := open(t.TempDir()+"/new/conf", t.TempDir()+"/new/state"); err != nil {
		t.Errorf("beside the repository: %v", err)
	}
	if err := open(link(p.op.Config), link(p.op.State)); err != nil {
		t.Errorf("through links, beside the repository: %v", err)
	}
	for name, x := range map[string][2]string{
		"conf": {inside, p.op.State}, "conf that is not there": {p.repo.Dir + "/none/conf", p.op.State}, "the repository itself": {p.repo.Dir, p.op.State},
		"state": {p.op.Config, inside}, "conf through a link": {link(inside), p.op.State}, "state through a link": {p.op.Config, link(inside) + "/new"},
	} {
		if err := open(x[0], x[1]); outcomeOf(nil, err) != Refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, file := range []string{"hosts.yaml", "allowed_signers"} {
		conf := t.TempDir()
		if err := os.Symlink(inside+"/"+file, conf+"/"+file); err != nil {
			t.Fatal(err)
		}
		if err := open(conf, p.op.State); outcomeOf(nil, err) != Refused {
			t.Errorf("%s through a link: %v", file, err)
		}
	}
}

// TestRedaction: what looks like a secret in what a host writes is not shown.
func TestRedaction(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ in, secret string }{
		{"password=hunter2", "hunter2"},
		{"DB_PASSWD: hunter2", "hunter2"},
		{"PASSWORD='hun ter2'", "ter2"},
		{`{"secret": "hun\"ter2"}`, "ter2"},
		{`{'api_key': 'hunter2'}`, "hunter2"},
		{"api-key=hunter2 next", "hunter2"},
		{"X-Api-Key: hunter2", "hunter2"},
		{"access_token=hunter2&x=1", "hunter2"},
		{"https://h/?token=hunter2&x=1", "hunter2"},
		{"https://user:hunter2@registry.example.org/x", "hunter2"},
		{"Authorization: Basic aHVudGVyMg==", "aHVudGVy"},
		{"authorization: Bearer hunter2hunter2", "hunter2"},
		{"got bearer hunter2hunter2 here", "hunter2"},
		{"docker login --password hunter2", "hunter2"},
		{"token ghp_1234567890abcdefghijABCDEFGHIJ123456", "ghp_1234567890abc"},
		{"aws AKIAQ3EGRJ4XBN2VLO7T x", "AKIAQ3EGRJ4XBN2VLO7T"},
		// As other programs wrap and lay them out.
		{`{"msg":"login {\"password\":\"hunter2\"}"}`, "hunter2"},
		{`{"msg":"{\\\"token\\\":\\\"hunter2\\\"}"}`, "hunter2"},
		{`{"secret": 12345678}`, "12345678"},
		{"password: correct horse battery", "battery"},
		{"  - db_password: correct horse battery", "horse"},
		{"| PGPASSWORD=hunter2", "hunter2"},
		{"Cookie: sid=abcdef; auth=hunter2", "hunter2"},
		{"Set-Cookie: sid=hunter2; HttpOnly", "hunter2"},
		{"proxy-authorization: Digest username=x, response=hunter2", "hunter2"},
		{"GET https://h/x?sig=hunter2&se=2027 200", "hunter2"},
		{"https://bucket.example.org/o?X-Amz-Signature=hunter2", "hunter2"},
		{"https://hunter2@example.org/x.git", "hunter2"},
		{"redis://:hunter2@cache:6379/0", "hunter2"},
		{"--api-key hunter2", "hunter2"},
		{"MYSQL_PWD=hunter2", "hunter2"},
		{"Server=db;Uid=sa;Pwd=hunter2;", "hunter2"},
		{"DB_PASS: hunter2", "hunter2"},
		{"AccountName=x;AccountKey=hunter2==;", "hunter2"},
		{"ENCRYPTION_KEY=hunter2", "hunter2"},
		{`{"auths":{"registry.example.org":{"auth":"dXNlcjpodW50ZXIy"}}}`, "dXNlcjpodW50ZXIy"},
		{"X-Registry-Auth: hunter2", "hunter2"},
		{"sshpass -p hunter2 ssh host", "hunter2"},
		{"curl -u user:hunter2 https://h/", "hunter2"},
		{"CREATE USER x IDENTIFIED BY 'hunter2'", "hunter2"},
		{"dsn u:hunter2@tcp(db:3306)/shop", "hunter2"},
		{"u:hun@ter2@tcp(db)/shop", "ter2"},
		{"postgres://u:hun@ter2@db/shop", "ter2"},
		{"postgres://u:hun/ter2@db/shop", "ter2"},
		{"postgres://u:hun/t@er2@db/shop", "er2"},
		{"GET /x?sig=hunter2 200", "hunter2"},
		{`"GET /o/a.tar?AWSAccessKeyId=a&Signature=hunter2 HTTP/1.1"`, "hunter2"},
		{"fetching o?sig=hunter2&se=2027", "hunter2"},
		// As people write them, and as arguments and elements are.
		{"mysql -h db -u root -phunter2 shop", "hunter2"},
		{"mysqldump -phunter2 shop", "hunter2"},
		{"<password>hunter2</password>", "hunter2"},
		{`<db-password type="plain">hun ter2</db-password>`, "ter2"},
		{"my password is hunter2", "hunter2"},
		{"The passphrase was 'correcthorse'", "correcthorse"},
		{`setting "hunter2" for DB_PASSWORD`, "hunter2"},
		{"using 'hunter2' as the_token", "hunter2"},
		{"token hunter2", "hunter2"},
		{"otp=123456", "123456"},
		{`["DB_PASSWORD", "hunter2"]`, "hunter2"},
		{`set('api_key', 'hunter2')`, "hunter2"},
		{"-----BEGIN PRIVATE KEY-----\\nMIIhunter2\\n-----END PRIVATE KEY-----", "hunter2"},
	} {
		if got := newRedactor().Line(x.in); strings.Contains(got, x.secret) {
			t.Errorf("%q became %q", x.in, got)
		}
	}
	r := newRedactor()
	key := r.Line("-----BEGIN OPENSSH PRIVATE KEY-----") + r.Line("b3BlbnNzaC1rZXkt") + r.Line("-----END OPENSSH PRIVATE KEY-----")
	if strings.Contains(key, "b3Bl") {
		t.Errorf("a private key became %q", key)
	}
	pgp := r.Line("-----BEGIN PGP PRIVATE KEY BLOCK-----") + r.Line("hunter2") + r.Line("-----END PGP PRIVATE KEY BLOCK-----")
	if strings.Contains(pgp, "hunter2") {
		t.Errorf("a private key became %q", pgp)
	}
	for _, head := range []string{"password: |", "  - db_password: >-", "| token: |2"} {
		r := newRedactor()
		r.Line(head)
		for _, l := range []string{"      hunter2", "", "       ter2"} {
			if got := r.Line("| " + l); strings.Contains(got, "ter2") {
				t.Errorf("%q after %q became %q", l, head, got)
			}
		}
		if got := r.Line("user: bob"); got != "user: bob" {
			t.Errorf("after a text that was a secret, %q", got)
		}
	}
	for _, plain := range []string{"what? nothing", "see https://example.org/a:b", "10:20:30 user@host connected", "Container web-web-1 Started", "pulling app:v1 from registry.example.org", "author: bob", "key: value", "mkdir -p /srv/web", "the password is wrong", "unexpected token }", "token expired", "secret is missing.", "<author>bob</author>", `"a", "b"`, `"x" for NAME`, "mysql -P 3306", "error: no space left on device"} {
		if got := r.Line(plain); got != plain {
			t.Errorf("%q became %q", plain, got)
		}
	}
	if got := shown(r.Line("a\x1b[2J\u202eb")); strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("a terminal would obey %q", got)
	}
}

// TestFlat: a module in the earlier form is shipped like any other.
func TestFlat(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.repo.Write(t, "modules/web/module.yaml", "id: web\nhost: one\nruntime: {orchestrator: docker-compose, compose_file: compose.yaml, remote_root: /srv/web, stable_for: 1s, health_timeout: 60s}\n")
	p.repo.Commit(t)
	m := p.draw(nil)
	p.refused("without an approval", Mismatch, [][]byte{m.Bytes})
	p.reaches("the flat form", m, p.approve("alice", false, m))
}

// TestP4NoRecord: what cannot be recorded here is not begun there.
func TestP4NoRecord(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	a := p.approve("alice", false, m)
	p.audited()
	p.e.Audit.Close()
	p.refused("without an audit log", "", [][]byte{m.Bytes}, a)
	p.e.Audit = nil
	records := filepath.Join(p.op.State, "records")
	if err := os.WriteFile(records, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused("without room for records", "", [][]byte{m.Bytes}, a)
	os.Remove(records)
	p.reaches("with both", m, a)
}

// TestP3NoFile: what stands in a file's place and is none cannot be brought back, so that
// replacing it destroys.
func TestP3NoFile(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.repo.Write(t, "modules/web/files/a.conf", "x")
	p.repo.Commit(t)
	see := func(what string, hide bool) Made {
		return p.draw(func(d *plan.Plan) {
			text := "carboy-observed 1\nimage " + someImage + "\nfile " + what + " a.conf\ncurrent -\n"
			d.Seen = plan.Seen{Text: text, SHA256: plan.Digest([]byte(text))}
			obs, err := plan.Observe(text)
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.e.load(p.ctx(), "web", d.Commit)
			if err != nil {
				t.Fatal(err)
			}
			d.Changes = changes(d, obs, s.module, nil)
			for i := range d.Changes {
				d.Changes[i].Destructive = d.Changes[i].Destructive && !hide
			}
		})
	}
	m := see("other", false)
	p.refused("a pipe, without the word", Destructive, [][]byte{m.Bytes}, p.approve("alice", false, m))
	p.reaches("a pipe, with the word", m, p.approve("alice", true, m))
	m = see("other", true)
	p.refused("a pipe, and a plan that hides it", Mismatch, [][]byte{m.Bytes}, p.approve("alice", true, m))
	m = see("-", false)
	p.reaches("nothing", m, p.approve("alice", false, m))
}

// TestAudit: approvals, applies, refusals and outcomes are records, and none tells a secret.
func TestAudit(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	dir := p.audited()
	m := p.draw(nil)
	p.refused("no approval", Mismatch, [][]byte{m.Bytes})
	s, err := p.e.Approve(p.ctx(), ApproveOptions{Plans: [][]byte{m.Bytes}, Approver: "alice@example.org", Purpose: "because password=hunter2", Key: p.op.Config + "/alice"})
	if err != nil {
		t.Fatal(err)
	}
	p.reaches("approved", m, s)
	text := readFile(t, dir+"/log")
	for _, want := range []string{`"ship.apply"`, `"approval"`, `"ship.outcome"`, `"mismatch"`, `"failed"`, "alice@example.org", m.Digest, m.Commit} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, "hunter2") {
		t.Error("the log tells a password")
	}
	if r, err := audit.Verify(p.ctx(), dir, audit.VerifyOptions{}); err != nil || !r.OK() {
		t.Errorf("%+v %v", r, err)
	}
}

// TestWritable: what is synced never lies where a service could put a link.
func TestWritable(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.repo.Write(t, "modules/web/files/conf/a", "x")
	for volumes, ok := range map[string]bool{"['./conf:/conf:ro', './data:/data']": true, "['./conf:/conf']": false, "['./conf/a:/a']": false, "['.:/all']": false} {
		p.repo.Write(t, "modules/web/compose.yaml", shiptest.Compose("web", "v1", "ok")+"    volumes: "+volumes+"\n")
		commit := p.repo.Commit(t)
		if _, err := p.e.load(p.ctx(), "web", commit); (err == nil) != ok || !ok && outcomeOf(nil, err) != Refused {
			t.Errorf("%s: %v", volumes, err)
		}
	}
}

// TestExample: what init writes can be read by what reads it.
func TestExample(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	os.Remove(p.op.Config + "/hosts.yaml")
	wrote, err := p.e.Example("shop")
	if err != nil || len(wrote) != 3 {
		t.Fatal(wrote, err)
	}
	p.repo.Commit(t)
	commit, _, _ := p.e.head(context.Background())
	if s, err := p.e.load(p.ctx(), "shop", commit); err != nil || s.module.Service != "shop" || !s.compose.Pinned {
		t.Errorf("%+v %v", s, err)
	}
	if _, _, err := p.e.host("prod1"); outcomeOf(nil, err) != Refused {
		t.Errorf("the example allows a host: %v", err)
	}
	if again, err := p.e.Example("shop"); err != nil || len(again) != 0 {
		t.Errorf("written over: %v %v", again, err)
	}
}
