package provenance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/attest"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/safetext"
)

// ErrNone means that there is no record of a commit, neither kept nor in the audit log.
var ErrNone = errors.New("there is no such record")

// VerifyOptions say what to verify. One of Commit and File is needed.
type VerifyOptions struct {
	// Commit is a commit's full name or the beginning of one, of at least 4 hexadecimal
	// digits. OWNER/REPO@ may stand before it.
	Commit string
	// File is an envelope or a bundle anywhere; empty: the one that is kept for Commit.
	File string
	// Key must have signed: a public key of an audit log, as key.pub has it, or one in PEM
	// form, which only a bundle of Sigstore's format can fit. Empty: this user's own.
	Key string
	// WorkTree is a directory of a git work tree, which is compared if it has the commit.
	// Empty: none is.
	WorkTree string
}

// ValidCommit reports whether s can be VerifyOptions.Commit.
func ValidCommit(s string) bool {
	path, commit, ok := strings.Cut(s, "@")
	if !ok {
		path, commit = "a/b", s
	}
	i := strings.LastIndexByte(path, '/')
	return len(commit) >= 4 && len(commit) <= 64 && strings.Trim(commit, hexDigits) == "" && i > 0 && checkRepo(path[:i], path[i+1:]) == nil
}

// Result names the outcome of a check of a record. The zero Result is not valid.
type Result string

// The results.
const (
	Holds     Result = "holds"
	Fails     Result = "fails"
	Unchecked Result = "not checked"
)

// Check is one of the checks of a record.
type Check struct {
	Name   string `json:"name"` // signature, form, commit, audit log, git
	Result Result `json:"result"`
	Text   string `json:"text"` // safe to show
}

// Report holds the findings of Verify.
type Report struct {
	Schema string `json:"schema"` // carboy.dev/provenance-report/v1
	// Verified says that the key signed this record, and that no check failed.
	Verified bool   `json:"verified"`
	File     string `json:"file"`
	SHA256   string `json:"sha256,omitempty"` // of the file
	Key      string `json:"key"`
	KeyGiven bool   `json:"key_given"` // else it is of this user's audit log
	// Build, Record and Sources are what the key signed; Record is nil if it signed none.
	Build   string   `json:"build,omitempty"`
	Record  *Facts   `json:"record,omitempty"`
	Sources *Sources `json:"sources,omitempty"`
	Checks  []Check  `json:"checks"`
}

func (r *Report) say(name string, result Result, format string, a ...any) {
	r.Checks = append(r.Checks, Check{name, result, safetext.String(fmt.Sprintf(format, a...), 2000)})
}

// finish sets Verified.
func (r *Report) finish() *Report {
	r.Verified = r.Record != nil && !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Result == Fails })
	return r
}

// Verify checks a record. It needs no network. The error is ErrNone if there is no record, an
// OptionError if the options name none, or says why nothing could be checked; what is wrong
// with a record is in the report.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	if o.Commit == "" && o.File == "" {
		return nil, &fault.OptionError{Option: "commit", Reason: "is needed, or a file", Advice: `name the merge commit: "$(git rev-parse HEAD)"`}
	}
	if o.Commit != "" && !ValidCommit(o.Commit) {
		return nil, &fault.OptionError{Option: "commit", Value: safetext.String(o.Commit, 80), Reason: "is no name of a commit", Advice: `write its hexadecimal digits, at least 4: "$(git rev-parse HEAD)"`}
	}
	v := &verification{s: s, o: o, r: &Report{Schema: "carboy.dev/provenance-report/v1", Key: o.Key, KeyGiven: o.Key != ""}}
	if err := v.keys(); err != nil {
		return nil, err
	}
	if err := v.stored(ctx); err != nil {
		return nil, err
	}
	if v.r.Record != nil {
		if err := v.git(ctx); err != nil {
			return nil, err
		}
	}
	return v.r.finish(), nil
}

// stored checks all but the work tree.
func (v *verification) stored(ctx context.Context) error {
	unlock, err := v.s.lock(ctx, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.find(ctx); err != nil {
		return err
	}
	if err := v.read(); err != nil {
		if v.gone == nil {
			return err
		}
		v.r.say("audit log", Fails, "record %d says that it was sealed, and it can't be read: %v", v.gone.seq, err)
		return nil
	}
	if !v.signed(ctx) {
		return nil
	}
	v.commit()
	return v.logged(ctx)
}

// verification is one call of Verify.
type verification struct {
	s    *Store
	o    VerifyOptions
	r    *Report
	key  *attest.Key
	pem  bool // the key is for a bundle
	own  bool // the key is this user's
	name name // of the record that is kept; zero for a file
	gone *recorded
	text []byte // of the file
}

func (v *verification) keys() (err error) {
	mine := v.s.log.PublicKey()
	switch {
	case v.o.Key == "":
		v.r.Key, v.own = mine, true
		v.key, err = logKey(mine)
	case strings.HasPrefix(strings.TrimSpace(v.o.Key), "-----BEGIN"):
		v.pem = true
		v.key, err = attest.ParsePEM(v.o.Key)
	default:
		v.own = v.o.Key == mine
		v.key, err = logKey(v.o.Key)
	}
	if err != nil {
		return &fault.OptionError{Option: "--key", Reason: "is no public key: " + err.Error(), Advice: `give the line of a key.pub, or a public key in PEM form: --key "$(cat key.pub)"`}
	}
	return nil
}

// find sets the name of the record that Commit names, unless a file was named.
func (v *verification) find(ctx context.Context) error {
	if v.o.File != "" {
		return nil
	}
	files, err := v.s.files(ctx)
	if err != nil {
		return err
	}
	records, err := v.s.records(ctx)
	if err != nil {
		return err
	}
	fit := map[name]bool{}
	for _, n := range slices.AppendSeq(files, maps.Keys(records)) {
		if n.fits(v.o.Commit) {
			fit[n] = true
		}
	}
	switch len(fit) {
	case 0:
		return fmt.Errorf("commit %s: %w", v.o.Commit, ErrNone)
	case 1:
	default:
		all := fault.Mapped(slices.Collect(maps.Keys(fit)), name.String)
		slices.Sort(all)
		return &fault.OptionError{Option: "commit", Value: v.o.Commit, Reason: fmt.Sprintf("can be %d records, such as %s", len(all), strings.Join(all[:min(len(all), 4)], " and ")), Advice: "write more digits, or OWNER/REPO@ before them"}
	}
	for n := range fit {
		v.name, v.gone = n, records[n]
	}
	return nil
}

// fits reports whether ref names n, as VerifyOptions.Commit.
func (n name) fits(ref string) bool {
	repo, commit, ok := strings.Cut(ref, "@")
	if !ok {
		return strings.HasPrefix(n.commit, ref)
	}
	return repo == n.owner+"/"+n.repo && strings.HasPrefix(n.commit, commit)
}

// read reads the file that is verified.
func (v *verification) read() (err error) {
	if v.o.File != "" {
		v.r.File = safetext.Path([]byte(v.o.File))
		v.text, err = readAt(unix.AT_FDCWD, v.o.File, v.o.File)
	} else {
		end := suffix
		if v.pem {
			end = bundleSuffix
		}
		v.r.File = safetext.Path([]byte(v.s.file(v.name, end)))
		v.text, err = v.s.read(v.name, end)
		if v.pem {
			v.gone = nil // the log has no bundles
		}
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256(v.text)
	v.r.SHA256 = hex.EncodeToString(sum[:])
	return nil
}

// signed checks signature and form. It reports whether there is a record to go on with.
func (v *verification) signed(ctx context.Context) bool {
	var statement []byte
	var err error
	if v.pem {
		e, berr := bundled(v.text)
		if err = berr; err == nil {
			statement, err = open(ctx, e, v.key)
		}
	} else {
		statement, err = openEnvelope(ctx, v.text, v.key)
	}
	if err != nil {
		v.r.say("signature", Fails, "%v", err)
		return false
	}
	v.r.say("signature", Holds, "the key signed the statement")
	p, err := parse(statement)
	if err != nil {
		v.r.say("form", Fails, "%v", err)
		return false
	}
	v.r.say("form", Holds, "an in-toto statement with SLSA provenance, as carboy %s writes it", p.build)
	v.r.Build, v.r.Record, v.r.Sources = p.build, p.facts, &p.sources
	if !v.pem && v.o.File == "" {
		v.beside(statement)
	}
	return true
}

// beside compares the bundle that stands beside a record, if there is one.
func (v *verification) beside(statement []byte) {
	b, err := v.s.read(v.name, bundleSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		e, berr := bundled(b)
		if err = berr; err == nil {
			var was []byte
			if was, err = e.DecodeB64Payload(); err == nil && !bytes.Equal(was, statement) {
				err = errors.New("it has another statement")
			}
		}
	}
	if err != nil {
		v.r.say("bundle", Fails, "%s: %v", v.s.file(v.name, bundleSuffix), err)
		return
	}
	v.r.say("bundle", Unchecked, "the bundle beside it has the same statement; its signature needs --key with a public key in PEM form")
}

// commit compares the record with what was asked for.
func (v *verification) commit() {
	f := v.r.Record
	n := name{f.Owner, f.Repo, f.Commit}
	switch {
	case v.o.File == "" && n != v.name:
		v.r.say("commit", Fails, "the record is of %s, and stands in the place of %s", n, v.name)
	case v.o.Commit != "" && !n.fits(v.o.Commit):
		v.r.say("commit", Fails, "the record is of %s, not of %s", n, v.o.Commit)
	case v.o.Commit == "":
		v.r.say("commit", Unchecked, "the record is of %s; name the commit that it must be of", n)
	default:
		v.r.say("commit", Holds, "the record is of %s", n)
	}
}

// logged compares the record with the audit log.
func (v *verification) logged(ctx context.Context) error {
	f := v.r.Record
	switch {
	case v.pem:
		v.r.say("audit log", Unchecked, "it has the digests of records, not of bundles")
		return nil
	case !v.own:
		v.r.say("audit log", Unchecked, "the log of this key is not here")
		return nil
	}
	report, err := audit.Verify(ctx, v.s.log.Dir(), audit.VerifyOptions{Key: v.s.log.PublicKey()})
	if err != nil {
		return err
	}
	if report.Status == audit.Tampered {
		v.r.say("audit log", Fails, "the log was tampered with: carboy audit verify says where")
		return nil
	}
	records, err := v.s.records(ctx)
	if err != nil {
		return err
	}
	was := records[name{f.Owner, f.Repo, f.Commit}]
	if result, text := was.agrees(v.r.SHA256); result == Fails {
		v.r.say("audit log", Fails, "%s", text)
	} else {
		v.r.say("audit log", Holds, "%s", text)
	}
	return nil
}

// agrees compares the digest of a file with the log.
func (r *recorded) agrees(digest string) (Result, string) {
	switch {
	case r == nil:
		return Fails, "the log does not have it"
	case slices.ContainsFunc(r.sum, func(d string) bool { return d != digest }) || len(r.sum) == 0:
		return Fails, fmt.Sprintf("the log has another one for this commit (record %d)", r.seq)
	}
	return Holds, fmt.Sprintf("record %d has its digest", r.seq)
}

// Entry is one record of List.
type Entry struct {
	Owner  string `json:"owner"`
	Repo   string `json:"repo"`
	Commit string `json:"commit"`
	File   string `json:"file"`
	SHA256 string `json:"sha256,omitempty"`
	// Record is nil if it is not what this user's key signed.
	Record *Facts `json:"record,omitempty"`
	// Wrong says why the record does not verify; empty: it does.
	Wrong string `json:"wrong,omitempty"`

	seq int64 // in the audit log; -1: not there
}

// List returns the records that are kept, and those that the audit log has and that are gone,
// the newest merge first and what does not verify before it. It compares no work tree.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	unlock, err := s.lock(ctx, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, err := s.files(ctx)
	if err != nil {
		return nil, err
	}
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	all := map[name]bool{}
	for _, n := range slices.AppendSeq(files, maps.Keys(records)) {
		all[n] = true
	}
	out := []Entry{}
	for n := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e := Entry{Owner: n.owner, Repo: n.repo, Commit: n.commit, File: filepath.Clean(s.file(n, suffix)), seq: -1}
		if r := records[n]; r != nil {
			e.seq = r.seq
		}
		s.entry(ctx, n, key, records[n], &e)
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if (a.Record == nil) != (b.Record == nil) {
			return map[bool]int{true: -1, false: 1}[a.Record == nil]
		}
		if a.Record != nil && !a.Record.Merged.Equal(b.Record.Merged) {
			return b.Record.Merged.Compare(a.Record.Merged)
		}
		return strings.Compare(name{a.Owner, a.Repo, a.Commit}.String(), name{b.Owner, b.Repo, b.Commit}.String())
	})
	return out, nil
}

// entry reads a record into e, or what is wrong with it.
func (s *Store) entry(ctx context.Context, n name, key *attest.Key, was *recorded, e *Entry) {
	b, err := s.read(n, suffix)
	if errors.Is(err, fs.ErrNotExist) {
		e.Wrong = "it was sealed, and is gone"
		return
	}
	var p *parsed
	if err == nil {
		sum := sha256.Sum256(b)
		e.SHA256 = hex.EncodeToString(sum[:])
		var statement []byte
		if statement, err = openEnvelope(ctx, b, key); err == nil {
			p, err = parse(statement)
		}
	}
	if err == nil && (name{p.facts.Owner, p.facts.Repo, p.facts.Commit}) != n {
		err = fmt.Errorf("it is of commit %s of %s/%s", p.facts.Commit, p.facts.Owner, p.facts.Repo)
	}
	if err != nil {
		e.Wrong = safetext.String(err.Error(), 1000)
		return
	}
	e.Record = p.facts
	if result, text := was.agrees(e.SHA256); result == Fails {
		e.Wrong = text
	}
}

// Findings returns what is wrong with the records, for carboy audit verify.
func (s *Store) Findings(ctx context.Context) ([]audit.Finding, error) {
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []audit.Finding
	for _, e := range list {
		if e.Wrong != "" {
			out = append(out, audit.Finding{Record: e.seq, Text: "provenance " + name{e.Owner, e.Repo, e.Commit}.String() + ": " + e.Wrong})
		}
	}
	return out, nil
}
