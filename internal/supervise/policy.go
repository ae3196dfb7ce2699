package supervise

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
)

// Policy answers some proposals by rule. It is read once. A later change of the file makes
// another policy.
type Policy struct {
	file   string
	digest Digest
	rules  []rule
}

// ruled is a Payload that a rule may approve. A rule can only reject other kinds.
type ruled interface {
	Payload
	// Subjects returns all that the payload would do, at least one subject. A rule that
	// approves must cover every subject. A rule that rejects needs to meet one.
	Subjects() []Subject
	// Needs returns the keys that an approving rule must have.
	Needs() []string
}

// Subject is one thing that a payload would do, with the keys of rules. An empty field
// means no limit: a rule that limits it does not cover the subject.
type Subject struct {
	Host       string
	Methods    []string
	Paths      []routes.ValueDescription
	Git        bool // git may fetch
	Repository string
	Rule       string
}

// rule is a rule of a policy. An empty list does not limit.
type rule struct {
	number, line int
	kinds        []string
	bottles      []string
	hosts        []string
	methods      []string
	paths        []string
	git          bool
	repositories []string
	rules        []string
	verdict      Verdict
	note         string
}

const maxRules = 1000

// LoadPolicy reads a policy file, which must belong to the user. It refuses a file that
// others can write, or whose parent directories they can, and a file in a workspace, where
// changes of a bottle land. config is the user's configuration directory, which may be in a
// repository. Any other repository counts as a workspace.
func LoadPolicy(path, config string, workspaces ...string) (*Policy, error) {
	data, file, err := readPolicy(path, config, workspaces)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", path, err)
	}
	return parsePolicy(file, data)
}

func readPolicy(path, config string, workspaces []string) ([]byte, string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	file, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, "", err
	}
	for _, w := range workspaces {
		if real, err := filepath.EvalSymlinks(w); err == nil && inside(file, real) {
			return nil, "", fmt.Errorf("lies in the workspace %s, to which a bottle's changes can land: keep it elsewhere, such as in ~/.config/carboy", real)
		}
	}
	if real, err := filepath.EvalSymlinks(config); config == "" || err != nil || !inside(file, real) {
		for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
				return nil, "", fmt.Errorf("lies in the repository %s: keep it elsewhere, such as in ~/.config/carboy", dir)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if err := ownWay(file); err != nil {
		return nil, "", err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, "", errors.New("is not a regular file")
	}
	if err := mine(&st, false); err != nil {
		return nil, "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, document.MaxSize+1))
	return data, file, err
}

func inside(file, dir string) bool {
	rel, err := filepath.Rel(dir, file)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// ownWay returns an error if another user could replace file.
func ownWay(file string) error {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return err
		}
		if err := mine(&st, true); err != nil {
			return fmt.Errorf("directory %s: %w", dir, err)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func mine(st *unix.Stat_t, dir bool) error {
	if uid := uint32(os.Geteuid()); st.Uid != uid && st.Uid != 0 {
		return fmt.Errorf("belongs to user %d, not to user %d", st.Uid, uid)
	}
	if st.Mode&0o022 != 0 && !(dir && st.Mode&unix.S_ISVTX != 0) {
		return fmt.Errorf("can be written by others (mode %#o): chmod go-w it", st.Mode&0o777)
	}
	return nil
}

// parsePolicy parses a policy. file is its name in messages and records. The error is a
// document.Error.
func parsePolicy(file string, data []byte) (*Policy, error) {
	doc, v, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	p := &Policy{file: file, digest: sha256.Sum256(data)}
	list := v.Mapping("rules").Need("rules").List()
	if len(list) > maxRules {
		v.Bad(fmt.Sprintf("%d rules, at most %d", len(list), maxRules), "")
	}
	for i, e := range list {
		p.rules = append(p.rules, readRule(i+1, e))
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	if len(p.rules) == 0 {
		return nil, document.Error{{File: file, What: "has no rules", Advice: "write them under rules:"}}
	}
	return p, nil
}

// Digest returns the SHA-256 of the file.
func (p *Policy) Digest() Digest { return p.digest }

// Rules returns the number of rules.
func (p *Policy) Rules() int { return len(p.rules) }

func readRule(number int, v document.Value) rule {
	m := v.Mapping("kind", "bottle", "host", "methods", "paths", "git", "repository", "rule", "answer", "note")
	r := rule{number: number, line: v.Line()}
	r.kinds = oneOrMore(m.Need("kind"))
	r.bottles = oneOrMore(m.Get("bottle"))
	r.hosts = oneOrMore(m.Get("host"))
	r.methods = oneOrMore(m.Get("methods"))
	r.paths = oneOrMore(m.Get("paths"))
	r.git = m.Get("git").Bool(false)
	r.repositories = oneOrMore(m.Get("repository"))
	r.rules = oneOrMore(m.Get("rule"))
	if w := m.Need("answer"); w.Present() {
		r.verdict = map[string]Verdict{"approve": Approved, "reject": Rejected}[w.OneOf("reject", "approve")]
	}
	r.note = m.Get("note").Text()
	if len(r.note) > MaxNote {
		m.Get("note").Bad(fmt.Sprintf("%d bytes, at most %d", len(r.note), MaxNote), "")
	}
	for _, k := range r.kinds {
		checkRuleKind(m, Kind(k), r)
	}
	for i, h := range r.hosts {
		name := strings.TrimPrefix(h, "*.")
		if _, err := policy.ParseAllow(name); err != nil {
			m.Get("host").Bad(fmt.Sprintf("%.80q is no host", r.hosts[i]), "write a name, NAME:PORT or *.NAME")
		}
	}
	for _, x := range r.methods {
		if x == "" || x != strings.ToUpper(x) {
			m.Get("methods").Bad(fmt.Sprintf("%.40q is no method", x), "write it in capitals")
		}
	}
	for _, x := range r.paths {
		if n, err := policy.NormalPath(x); err != nil || n != x {
			m.Get("paths").Bad(fmt.Sprintf("%.80q is no path as servers agree about it", x), "write whole segments, as in /v1/models")
		}
	}
	return r
}

// oneOrMore reads a text or a list of texts.
func oneOrMore(v document.Value) []string {
	if !v.Present() {
		return nil
	}
	if v.IsList() {
		out := v.Strings()
		if len(out) == 0 {
			v.Bad("is empty", "leave it out, or name something")
		}
		return out
	}
	s := v.Text()
	if s == "" {
		v.Bad("is empty", "leave it out, or name something")
	}
	return []string{s}
}

// checkRuleKind adds a problem if a rule cannot do what it says for kind k.
func checkRuleKind(m document.Mapping, k Kind, r rule) {
	zero := kinds[k]
	if zero.decode == nil {
		var names []string
		for _, k := range Kinds() {
			names = append(names, string(k))
		}
		advice := "known: " + strings.Join(names, ", ")
		if near := document.Nearest(string(k), names); near != "" {
			advice = "did you mean " + near + "?"
		}
		m.Get("kind").Bad(fmt.Sprintf("unknown kind %.60q", k), advice)
		return
	}
	if r.verdict != Approved {
		return
	}
	ruled, ok := zero.zero.(ruled)
	if !ok {
		m.Get("answer").Bad(fmt.Sprintf("%s is approved by people only", k), "a rule may reject it")
		return
	}
	for _, key := range ruled.Needs() {
		if !m.Get(key).Present() {
			m.Get("answer").Bad(fmt.Sprintf("approves every %s, whatever its %s", k, key), "name "+key)
		}
	}
}

// match returns the first rule that answers x. It returns nil if a person must decide.
func (p *Policy) match(x Proposal) *rule {
	for i := range p.rules {
		r := &p.rules[i]
		if r.answers(x) {
			return r
		}
	}
	return nil
}

func (r *rule) answers(x Proposal) bool {
	if !slices.Contains(r.kinds, string(x.Kind)) || len(r.bottles) > 0 && !slices.Contains(r.bottles, x.Bottle) {
		return false
	}
	ruled, ok := x.Payload.(ruled)
	if !ok {
		// Its subjects are not known, so a rule with further conditions does not match.
		return r.verdict == Rejected && r.everything()
	}
	subjects := ruled.Subjects()
	if r.verdict == Rejected {
		return r.everything() || slices.ContainsFunc(subjects, r.meets)
	}
	for _, s := range subjects {
		if !r.covers(s) {
			return false
		}
	}
	return len(subjects) > 0
}

// everything reports whether the rule has no condition beside kinds and bottles.
func (r *rule) everything() bool {
	return len(r.hosts)+len(r.methods)+len(r.paths)+len(r.repositories)+len(r.rules) == 0
}

// covers reports whether the rule allows all of s.
func (r *rule) covers(s Subject) bool {
	if s.Git && !r.git {
		return false
	}
	return within(r.hosts, s.Host, hostCovers) &&
		within(r.repositories, s.Repository, equal) &&
		within(r.rules, s.Rule, equal) &&
		(len(r.methods) == 0 || len(s.Methods) > 0 && all(s.Methods, func(m string) bool { return slices.Contains(r.methods, m) })) &&
		(len(r.paths) == 0 || len(s.Paths) > 0 && all(s.Paths, r.coversPath))
}

// coversPath reports whether the rule allows the path. It never covers a regular
// expression: what that matches is not known.
func (r *rule) coversPath(p routes.ValueDescription) bool {
	if p.Type != policy.Prefix.String() && p.Type != policy.Exact.String() {
		return false
	}
	return slices.ContainsFunc(r.paths, func(have string) bool { return below(p.Value, have) })
}

// meets reports whether the rule names a part of s, or may name one.
func (r *rule) meets(s Subject) bool {
	host := len(r.hosts) == 0 || s.Host == "" || slices.ContainsFunc(r.hosts, func(h string) bool { return hostCovers(h, s.Host) || hostCovers(s.Host, h) })
	methods := len(r.methods) == 0 || len(s.Methods) == 0 || slices.ContainsFunc(s.Methods, func(m string) bool { return slices.Contains(r.methods, m) })
	paths := len(r.paths) == 0 || len(s.Paths) == 0 || slices.ContainsFunc(s.Paths, func(p routes.ValueDescription) bool {
		return p.Type == policy.Regexp.String() || slices.ContainsFunc(r.paths, func(have string) bool { return below(p.Value, have) || below(have, p.Value) })
	})
	return host && methods && paths && within(r.repositories, s.Repository, equal) && within(r.rules, s.Rule, equal)
}

func within(have []string, want string, covers func(have, want string) bool) bool {
	return len(have) == 0 || want != "" && slices.ContainsFunc(have, func(h string) bool { return covers(h, want) })
}

func equal(a, b string) bool { return a == b }

func all[T any](list []T, f func(T) bool) bool {
	return !slices.ContainsFunc(list, func(x T) bool { return !f(x) })
}

// hostCovers reports whether the pattern have matches every host that the pattern want
// matches.
func hostCovers(have, want string) bool {
	if have == want {
		return true
	}
	suffix, wild := strings.CutPrefix(have, "*")
	return wild && strings.HasSuffix(strings.TrimPrefix(want, "*"), suffix) && len(strings.TrimPrefix(want, "*")) > len(suffix)
}

// below reports whether path is dir or lies below it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
