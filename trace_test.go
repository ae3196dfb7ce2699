package carboy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// facts reads a run's trace, which must be whole.
func (w *world) facts(r *receipt.Receipt) []trace.Fact {
	w.t.Helper()
	f, err := w.c.Trace(r.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	var out []trace.Fact
	for {
		var x trace.Fact
		err := f.Next(&x)
		if err == io.EOF {
			break
		}
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, x)
	}
	if t := f.Tail(); !t.Ended || t.Reason != "" || t.Torn != 0 {
		w.t.Errorf("the trace ends with %+v", t)
	}
	return out
}

// logged reports whether text is in the audit log.
func (w *world) logged(text string) bool {
	found := false
	filepath.WalkDir(w.c.AuditDir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			found = found || err == nil && strings.Contains(string(b), text)
		}
		return nil
	})
	return found
}

func TestTraceOfARun(t *testing.T) {
	for _, mode := range []store.Mode{store.Overlay, store.Bind, store.None} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t)
			w.write("input", "x")
			r, _ := w.ok("cat input /etc/hostname >made 2>/dev/null; rm -f made2; cat nowhere; exit 0", func(o *plan.Options) { o.Mode = mode })
			tr := r.Trace
			if tr == nil || tr.Facts == 0 || tr.Dropped != 0 || tr.Unkept != 0 || tr.Incomplete != "" {
				t.Fatalf("trace: %+v", tr)
			}
			b, err := os.ReadFile(filepath.Join(string(r.Evidence), store.TraceFile))
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(b); tr.Digest != hex.EncodeToString(sum[:]) || tr.Bytes != int64(len(b)) {
				t.Errorf("the receipt's digest is not the file's")
			}
			if !w.logged(tr.Digest) {
				t.Error("the digest is not in the audit log")
			}
			got := w.facts(r)
			if int64(len(got)) != tr.Facts {
				t.Errorf("%d facts in the file, %d in the receipt", len(got), tr.Facts)
			}
			if r.Files.ReadTotal == 0 || r.Files.Missed == 0 || r.Processes.Execs == 0 {
				t.Errorf("files %+v, processes %+v", r.Files, r.Processes)
			}
			if mode != store.None && r.Files.ReadInside != 1 {
				t.Errorf("%d files read in the workspace, want input alone", r.Files.ReadInside)
			}
			wrote := false
			for _, x := range r.Files.Written {
				wrote = wrote || strings.HasSuffix(string(x.Path), "/made") && x.Inside == (mode != store.None)
			}
			if !wrote {
				t.Errorf("written: %+v", r.Files.Written)
			}
		})
	}
}

// What goes in under a secret's name is in no argument and no path that is
// kept, and variables are not kept at all.
func TestTraceHoldsNoSecret(t *testing.T) {
	w := newWorld(t)
	const val = "s3cr3t-value-of-this-test"
	r, _ := w.ok(`cat /tmp/$API_TOKEN x$API_TOKEN; mkdir /tmp/d$API_TOKEN; sh -c "true $API_TOKEN"; env >/dev/null; : plain-words-stay; cat /tmp/plain; true`, func(o *plan.Options) {
		o.Env = []string{"API_TOKEN=" + val, "PLAIN=not-a-secret-but-a-variable"}
	})
	var all bytes.Buffer
	for _, f := range w.facts(r) {
		all.WriteString(f.Path + "\n" + f.Path2 + "\n" + strings.Join(f.Args, "\n") + "\n")
	}
	doc, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	all.Write(doc)
	if s := all.String(); strings.Contains(s, val) || strings.Contains(s, "not-a-secret-but-a-variable") {
		t.Error("a secret, or a variable, is in the trace or the receipt")
	} else if !strings.Contains(s, "/tmp/[redacted:api_token]") || !strings.Contains(s, "/tmp/plain") {
		t.Error("what stands around it is gone too")
	}
}

// Real work loses nothing: every fact arrives and is kept.
func TestTraceLosesNothing(t *testing.T) {
	git := testenv.Need(t, "git", "apt-get install git")
	w := newWorld(t)
	src := filepath.Join(w.ws, "src")
	cmd := exec.Command(git, "init", "-q", src)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.ws}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	r, out := w.ok(`export HOME=$PWD
cd src; i=0; while [ $i -lt 300 ]; do echo $i >f$i; i=$((i+1)); done
git -c safe.directory='*' add . && git -c safe.directory='*' -c user.name=a -c user.email=a@b commit -qm one
cd ..; git -c safe.directory='*' clone -q --no-hardlinks src copy
i=0; while [ $i -lt ` + strconv.Itoa(rounds) + ` ]; do [ -e copy/f$((i%300)) ]; [ -e copy/none$i ]; cat </dev/null; i=$((i+1)); [ $((i%20)) = 0 ] && ls copy >/dev/null; done; true`)
	tr := r.Trace
	if tr.Dropped != 0 || tr.Unkept != 0 || tr.Incomplete != "" || tr.Facts < int64(4*rounds) {
		t.Errorf("trace %+v\n%s", tr, out)
	}
	got := w.facts(r)
	for i, f := range got {
		if f.Seq != uint64(i+1) {
			t.Fatalf("fact %d has number %d", i+1, f.Seq)
		}
	}
	t.Logf("%d facts in %d bytes, %v", tr.Facts, tr.Bytes, r.Duration)
}

// A command that fills the trace with names of files does not push out what it
// executed, and what is only counted is said.
func TestTraceBound(t *testing.T) {
	w := newWorld(t)
	w.c.host.Config.Trace.MaxMiB = 1
	r, _ := w.ok(`head -c 1500000 /dev/urandom | base64 -w 3900 | tar -cf /dev/null -T - 2>/dev/null; /usr/bin/env true; cat /etc/hostname; exit 0`)
	tr := r.Trace
	if tr.Unkept == 0 || tr.Dropped != 0 || tr.Bytes > 1<<20 || tr.Incomplete != "" {
		t.Errorf("trace %+v", tr)
	}
	var last string
	got := w.facts(r)
	for _, f := range got {
		if f.Op == trace.Exec && f.Errno == 0 {
			last = f.Path
		}
	}
	if !strings.HasSuffix(last, "/cat") || int64(len(got))+tr.Unkept != tr.Facts {
		t.Errorf("the last program in the trace is %q; %d facts kept of %+v", last, len(got), tr)
	}
}

func TestNoTrace(t *testing.T) {
	w := newWorld(t)
	r, _ := w.ok("true")
	if err := os.Remove(filepath.Join(string(r.Evidence), store.TraceFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Trace(r.ID); !errors.Is(err, review.ErrNoTrace) {
		t.Errorf("%v, want ErrNoTrace", err)
	}
	if _, err := w.c.Trace("01k9x3m7q8r5t2v6w4y0z1a2b3"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}
