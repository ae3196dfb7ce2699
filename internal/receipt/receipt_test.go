package receipt

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sample has every field filled in, some of it by an adversary.
func sample() *Receipt {
	started := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("CET", 3600))
	ended := started.Add(2414 * time.Millisecond)
	return &Receipt{
		Schema:    Schema,
		ID:        "01k9x3m7q8r5t2v6w4y0z1a2b3",
		Build:     "v0.1.0",
		Command:   []store.Raw{"sh", "-c", "echo hi > notes.txt; curl -s https://example.org/ https://evil.example/"},
		Workspace: Workspace{Path: "/home/ada/project", Mode: store.Overlay},
		Started:   &started,
		Ended:     &ended,
		Duration:  2414 * time.Millisecond,
		Exit:      Exit{Code: 7, Reason: Exited},
		Isolation: Isolation{
			Class: bottle.IsolationUserKernel, Backend: "gvisor", Build: "v0.0.0-20260905035102-160fafc42237",
			Posture: &bottle.Posture{
				Isolation: bottle.IsolationUserKernel, Backend: "gvisor", Build: "20260905",
				Processes: []bottle.ProcPosture{{Role: "sandbox", PID: 4242, UID: 1000, Seccomp: 2, NoNewPrivs: true,
					Namespaces: []string{"ipc", "mnt", "net", "pid", "user", "uts"}, Mounts: 2, FDs: map[string]int{"socket": 3}, Chrooted: true}},
			},
		},
		Limits: Limits{
			Limits: bottle.Limits{Timeout: 30 * time.Minute, Memory: 8 << 30, Pids: 512, Disk: 20 << 30, CPUs: 2, Output: 1 << 30, FileSize: 20 << 30, OpenFiles: 1 << 20},
			Hit:    []Hit{{Limit: "connections", Count: 3, Detail: "more than 256 connections at once"}},
		},
		Changes: &Changes{
			Total: 5, Added: 3, Modified: 1, Deleted: 1, Protected: 1, BaseMoved: 1, Unlandable: 1,
			List: []Change{
				{Path: ".git/hooks/pre-commit", Kind: "add", Type: "file", Size: 120, Protected: []string{"git runs hooks on the host"}},
				{Path: "notes.txt", Kind: "modify", Type: "file", Size: 3, BaseMoved: "its content changed"},
				{Path: "old/with spaces.txt", Kind: "delete", Type: "file"},
				{Path: "pipe", Kind: "add", Type: "fifo", Unlandable: "a pipe"},
				{Path: "src/\x1b]0;owned\x07\xff\u202e.go", Kind: "add", Type: "file", Size: 5 << 20},
			},
			Incomplete: []string{"1 file was too large to keep"},
		},
		Network: Network{
			Names: []Name{
				{Name: "example.org", Verdict: Allowed, Rule: "--allow example.org:443", Count: 2},
				{Name: "evil.example", Verdict: Refused, Rule: "", Count: 1},
				{Name: strings.Repeat("x", 63) + "." + strings.Repeat("y", 63) + ".example", Verdict: Refused, Count: 12},
			},
			NamesTotal: 3,
			Connections: []Connection{
				{Name: "example.org", Port: 443, Proto: "tls", Verdict: Allowed, Rule: "--allow example.org:443", Count: 2, BytesUp: 1234, BytesDown: 3 << 20},
				{Name: "169.254.169.254", Port: 80, Proto: "tcp", Verdict: Refused, Reason: "not-public: a metadata service", Rule: "literal", Count: 2},
				{Name: "2001:db8::1", Port: 443, Proto: "udp", Verdict: Refused, Reason: "udp", Rule: "", Count: 1},
			},
			ConnectionsTotal: 3,
			Requests: []Request{
				{Name: "example.org", Port: 443, Verdict: Allowed, Rule: "--allow example.org:443", Credential: "EXAMPLE_TOKEN", Count: 40, Failed: 2, BytesUp: 1100, BytesDown: 3 << 20},
				{Name: "example.org", Port: 443, Verdict: Refused, Reason: "request: the route wants method GET", Rule: "routes.yaml:4", Count: 3, Failed: 3},
			},
			RequestsTotal: 2,
			Credentials:   []Credential{{Name: "EXAMPLE_TOKEN", Requests: 40}}, CredentialsTotal: 1,
			Found: []Found{
				{Name: "example.org", Port: 443, What: "known-secret", Secret: "DEPLOY_KEY", Transform: "gzip > base64", Place: "body", Rule: "--allow example.org:443", Action: Blocked, Count: 2},
				{Name: "example.org", Port: 443, What: "github-pat", Place: "header X-Note", Rule: "--allow example.org:443", Action: Masked, Count: 1},
				{Name: "example.org", Port: 443, Inbound: true, What: "ignore-instructions", Place: "body", Rule: "--allow example.org:443", Action: Reported, Count: 1},
			},
			FoundTotal: 3,
			Totals:     Totals{NamesAllowed: 2, NamesRefused: 13, ConnectionsAllowed: 2, ConnectionsRefused: 3, RequestsAllowed: 40, RequestsRefused: 3, FoundOut: 3, FoundIn: 1, BytesUp: 1234, BytesDown: 3 << 20, Dropped: 1},
		},
		Trace: &Trace{Facts: 812, Dropped: 1, Unkept: 2, Bytes: 20_000, Digest: strings.Repeat("0a", 32), Incomplete: "one fact was dropped"},
		Processes: &Processes{Total: 4, Execs: 3, Failed: 1, List: []Process{
			{ID: 1, PID: 2, Path: "/usr/bin/dash", Args: []store.Raw{"sh", "-c", "echo hi"}, Digest: strings.Repeat("1b", 32), UID: 1000, EUID: 1000, Execs: 1, Start: 0, End: ptr(int64(2_400_000_000)), Code: 7},
			{ID: 2, Parent: 1, PID: 3, Path: "/usr/bin/curl", Args: []store.Raw{"curl", "-s", "https://example.org/\x1b[2J"}, UID: 1000, EUID: 1000, Execs: 1, Start: 4_000_000, End: ptr(int64(900_000_000))},
			{ID: 3, Parent: 2, PID: 4, UID: 1000, EUID: 1000, Start: 5_000_000, End: ptr(int64(6_000_000)), Signal: "SIGKILL"},
			{ID: 4, Parent: 1, PID: 5, Path: "/tmp/\xff", Args: []store.Raw{""}, UID: 1000, EUID: 0, Execs: 1, Start: 7_000_000},
		}},
		Files: &Files{
			Read: []Area{{Path: "/usr/lib", Files: 42}, {Path: "/etc", Files: 3}}, ReadTotal: 45, ReadInside: 7,
			Written:      []Written{{Path: "/home/ada/project/notes.txt", How: []string{"write"}, Inside: true}, {Path: "/tmp/x", How: []string{"make", "remove"}}, {Path: "/cache/state", How: []string{"write"}}},
			WrittenTotal: 3, Missed: 31, Denied: []Area{{Path: "/root", Files: 1}}, DeniedTotal: 1, More: true,
		},
		Privileges: &Privileges{Attempts: []Attempt{{What: "mount", Detail: "/mnt", Errno: "EPERM", Count: 1}, {What: "setid", Detail: "to 1000", Count: 2}}, Total: 3},
		Sockets:    &Sockets{List: []Socket{{Family: "inet", Type: "stream", Count: 4}, {Family: "packet", Type: "raw", Errno: "EPERM", Count: 1}}, Total: 5},
		Mounts:     []Mount{{Source: "/opt/tools", Target: "/opt/tools", Access: "read-only"}, {Source: "/home/ada/cache", Target: "/cache", Access: "read-write"}},
		Execs: &Execs{Total: 2, List: []Exec{
			{Command: []store.Raw{"ps", "-ef"}, By: 1000, Start: 2 * time.Second, Duration: 30 * time.Millisecond, Exit: Exit{Reason: Exited}},
			{Command: []store.Raw{"sh", "-c", "kill $$\x1b[2J"}, By: 1000, Start: 3 * time.Second, Duration: time.Second, Exit: Exit{Code: 143, Reason: Signalled, Signal: "SIGTERM"}},
		}},
		Git: &Git{
			Repos: []GitRepo{{Name: "app", URL: "ssh://git@example.org/org/app.git", Fetches: 12, FetchesFailed: 1, Pushes: 1, PushesRefused: 1, BytesUp: 4200, BytesDown: 3 << 20}},
			Pushes: []Push{
				{Repo: "app", Verdict: Pushed, Refs: []PushRef{{Name: "refs/heads/main", Old: strings.Repeat("1a", 20), New: strings.Repeat("2b", 20), Result: "ok"}, {Name: "refs/tags/old", Old: strings.Repeat("3c", 20)}}, RefsTotal: 2,
					Commits: []string{strings.Repeat("2b", 20)}, CommitsTotal: 1, Objects: 3, Scanned: 812, Bytes: 415},
				{Repo: "app", Verdict: PushRefused, Reason: "push refused, nothing was sent: a secret in what is pushed", Refs: []PushRef{{Name: "refs/heads/\x1b[2J", New: strings.Repeat("4d", 20)}}, RefsTotal: 3,
					CommitsTotal: 2, Objects: 7, Scanned: 1 << 20, Bytes: 9000,
					Found: []PushFound{{Rule: "known-secret", Secret: "DEPLOY_KEY", Transform: "base64", Commit: strings.Repeat("4d", 20), Where: "file", File: "conf/\xff.yaml", Line: 7, Allow: "rejected"}}, FoundTotal: 2},
			},
			PushesTotal: 3,
			Keys: []GitKey{
				{Repo: "app", Title: "carboy:reviewer:app", Fingerprint: "SHA256:abc", ID: "7", State: KeyRevoked},
				{Repo: "app", Title: "carboy:reviewer:lib", Fingerprint: "SHA256:def", ID: "8", State: KeyLeft, Error: "the forge answers 503", RemoveAt: "https://example.org/org/lib/settings/keys"},
			},
		},
		Published: []Published{{Port: 8080, Host: "127.0.0.1:8080"}},
		Services: []Service{
			{Name: "cache", Image: "built:redis", Digest: "sha256:" + strings.Repeat("5a", 32), Class: "user-kernel", Health: Listening, Connections: 1, BytesUp: 42, BytesDown: 7},
			{Name: "db", Image: "postgres:16", Digest: "sha256:" + strings.Repeat("6b", 32), Class: "user-kernel", Health: Healthy, Connections: 12, BytesUp: 9000, BytesDown: 3 << 20, Exit: &Exit{Code: 137, Reason: Memory, Error: "it used more than its limit of 1.0 GiB"}},
		},
		Audit:    &Audit{Seq: 12, Root: strings.Repeat("3f2a", 16)},
		Evidence: "/home/ada/.local/state/carboy/runs/01k9x3m7q8r5t2v6w4y0z1a2b3",
		Notes:    []string{"the wall clock was set back by 2 h during the run"},
	}
}

func ptr[T any](v T) *T { return &v }

// short returns a receipt as most look like.
func short() *Receipt {
	r := sample()
	r.Command = []store.Raw{"true"}
	r.Workspace = Workspace{Mode: store.None}
	r.Exit = Exit{Reason: Exited}
	r.Changes, r.Network, r.Mounts, r.Published, r.Services, r.Execs, r.Git, r.Notes = nil, Network{}, nil, nil, nil, nil, nil, nil
	r.Limits.Hit = nil
	r.Duration = 131 * time.Millisecond
	return r
}

// crowded has more in its lists than is shown.
func crowded() *Receipt {
	r := short()
	r.Workspace = sample().Workspace
	r.Changes = &Changes{Total: 100_000, Added: 100_000}
	for i := range MaxChanges {
		r.Changes.List = append(r.Changes.List, Change{Path: store.Raw(fmt.Sprintf("目录/文件-%04d.txt", i)), Kind: "add", Type: "file", Size: int64(i) << 10})
	}
	for i := range 25 {
		r.Network.Names = append(r.Network.Names, Name{Name: fmt.Sprintf("host%d.example", i), Verdict: Refused, Count: int64(i + 1)})
	}
	r.Network.NamesTotal = 5000
	r.Network.Totals.NamesRefused = 90_000
	return r
}

// busy is a build: floods, chains, failures, and more of all than fits.
func busy() *Receipt {
	r := short()
	r.Command = []store.Raw{"make", "-j8", "check"}
	r.Workspace = sample().Workspace
	r.Exit = Exit{Code: 2, Reason: Exited}
	r.Duration = 95 * time.Second
	r.Changes = &Changes{Total: 1, Added: 1, List: []Change{{Path: "out", Kind: "add", Type: "file", Size: 1 << 20}}}
	now := int64(0)
	var list []Process
	add := func(parent int64, took int64, code int, path string, args ...string) int64 {
		now += 3_000_000
		p := Process{ID: int64(len(list) + 1), Parent: parent, PID: int64(len(list) + 2), Path: store.Raw(path), UID: 1000, EUID: 1000, Execs: 1, Start: now, Code: code}
		if path != "" {
			p.Digest = fmt.Sprintf("%064x", len(path)*7919)
		}
		if took > 0 {
			p.End = ptr(now + took)
		}
		for _, a := range args {
			p.Args = append(p.Args, store.Raw(a))
		}
		list = append(list, p)
		return p.ID
	}
	root := add(0, 94_900_000_000, 2, "/usr/bin/make", "make", "-j8", "check")
	conf := add(root, 9_000_000_000, 0, "/usr/bin/dash", "sh", "./configure", "--prefix=/usr")
	for range 300 {
		add(conf, 1_000_000, 0, "/usr/bin/true", "true")
	}
	for range 20 {
		sub := add(conf, 6_000_000, 0, "")
		add(sub, 2_000_000, 0, "/usr/bin/expr", "expr", "a", ":", "b")
		add(sub, 2_000_000, 0, "/usr/bin/sed", "sed", "-n", "s/x/y/p")
	}
	for i := range 120 {
		cc := add(root, 700_000_000, 0, "/usr/bin/gcc-12", "cc", "-O2", "-c", fmt.Sprintf("src/file%03d.c", i))
		code := 0
		if i == 77 {
			code = 1
		}
		add(cc, 650_000_000, code, "/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "-quiet", fmt.Sprintf("src/file%03d.c", i))
	}
	deep := add(root, 30_000_000_000, 1, "/usr/bin/bash", "bash", "-c", "nest 40")
	for i := range 40 {
		deep = add(deep, 20_000_000_000, 0, "/usr/bin/bash", "bash", "-c", fmt.Sprintf("nest %d", 39-i))
	}
	add(root, 5_000_000_000, 0, "/tmp/build/目录/test runner", "sleep", "1000000")
	list[len(list)-1].Signal = "SIGKILL"
	add(root, 0, 0, "/usr/bin/ssh-agent", "ssh-agent", "-D")
	for i := range 60 {
		add(root, 40_000_000, 0, fmt.Sprintf("/home/ada/project/bin/tool%02d", i), fmt.Sprintf("tool%02d", i), "--run")
	}
	r.Trace = &Trace{Facts: 412_554, Bytes: 23 << 20, Digest: strings.Repeat("c4", 32)}
	r.Processes = &Processes{Total: int64(len(list)) + 9_374, Execs: 10_120, Failed: 12, List: list}
	r.Files = &Files{ReadTotal: 2811, ReadInside: 402, WrittenTotal: 1300, Missed: 40_231, DeniedTotal: 2,
		Denied: []Area{{Path: "/proc/1", Files: 2}}}
	for i, area := range []string{"/usr/include", "/usr/lib/gcc", "/usr/lib/x86_64-linux-gnu", "/usr/bin", "/etc", "/usr/share/locale", "/usr/lib/python3", "/usr/share/perl", "/var/lib", "/sys/devices", "/proc/self", "/dev"} {
		r.Files.Read = append(r.Files.Read, Area{Path: store.Raw(area), Files: int64(900 >> i)})
	}
	for i := range 300 {
		r.Files.Written = append(r.Files.Written, Written{Path: store.Raw(fmt.Sprintf("/home/ada/project/out/file%03d.o", i)), How: []string{"make", "write"}, Inside: true})
	}
	r.Files.Written = append(r.Files.Written, Written{Path: "/tmp/ccXYZ.s", How: []string{"make", "write", "remove"}}, Written{Path: "/etc/ld.so.preload", How: []string{"write"}})
	r.Privileges = &Privileges{Attempts: []Attempt{}}
	r.Sockets = &Sockets{List: []Socket{{Family: "inet", Type: "stream", Count: 4}, {Family: "unix", Type: "stream", Count: 1}}, Total: 5}
	return r
}

func failed() *Receipt {
	r := short()
	r.Started, r.Ended, r.Duration = nil, nil, 0
	r.Exit = Exit{Code: 125, Reason: Failed, Error: "gvisor: unprivileged user namespaces are forbidden here: operation not permitted"}
	r.Isolation, r.Limits, r.Audit, r.Evidence = Isolation{}, Limits{}, nil, ""
	return r
}

func TestText(t *testing.T) {
	for _, c := range []struct {
		name  string
		r     *Receipt
		style Style
	}{
		{"full", sample(), Style{}},
		{"full-20", sample(), Style{Width: 20}},
		{"full-40", sample(), Style{Width: 40}},
		{"full-200", sample(), Style{Width: 200}},
		{"full-ascii", sample(), Style{ASCII: true}},
		{"busy", busy(), Style{}},
		{"busy-20-ascii", busy(), Style{Width: 20, ASCII: true}},
		{"busy-40", busy(), Style{Width: 40}},
		{"busy-120", busy(), Style{Width: 120}},
		{"color", sample(), Style{Color: true}},
		{"short", short(), Style{}},
		{"crowded", crowded(), Style{}},
		{"failed", failed(), Style{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got bytes.Buffer
			if err := Text(&got, c.r, c.style); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("differs from %s (go test -update rewrites it):\n%s", name, got.String())
			}
		})
	}
}

var ansi = regexp.MustCompile("\x1b\\[[0-9]+m")

// holds fails the test unless each line fits and does nothing to a terminal.
func holds(t *testing.T, r *Receipt, s Style) {
	t.Helper()
	var b bytes.Buffer
	if err := Text(&b, r, s); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if s.Color {
		text = ansi.ReplaceAllString(text, "")
	}
	width := newPrinter(s).width
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if n := safetext.Width(line); n > width {
			t.Errorf("%+v: %d columns: %q", s, n, line)
		}
		if !safetext.Clean(line) {
			t.Errorf("%+v: not safe to show: %q", s, line)
		}
		if s.ASCII && strings.ContainsFunc(line, func(r rune) bool { return r > '~' }) {
			t.Errorf("%+v: not ASCII: %q", s, line)
		}
	}
}

// Whatever a bottle names things, a line stays a line, fits, and does nothing
// to the terminal.
func TestTextHoldsItsShape(t *testing.T) {
	for _, r := range []*Receipt{
		sample(), crowded(), busy(), failed(),
		hostile("\x1b[2J\r\n\u202e" + strings.Repeat("\u0300", 90)), hostile(strings.Repeat("w ", 400)), hostile(strings.Repeat("\u65e5", 300)),
	} {
		for _, width := range []int{1, 33, 50, 200} {
			if testing.Short() && width > 1 {
				break
			}
			for bits := range 8 {
				holds(t, r, Style{Width: width, All: bits&1 != 0, Color: bits&2 != 0, ASCII: bits&4 != 0})
			}
		}
	}
}

// hostile has text from inside everywhere it can be.
func hostile(s string) *Receipt {
	r := sample()
	raw := store.Raw(s)
	r.Command = []store.Raw{raw, "", raw}
	r.Workspace.Path, r.Evidence, r.Build = raw, raw, s
	r.Exit = Exit{Code: 125, Reason: Failed, Error: s, Signal: s}
	r.Limits.Hit = []Hit{{Limit: s, Detail: s}}
	r.Changes.List = []Change{{Path: raw, Kind: s, Type: s, Protected: []string{s}, BaseMoved: s, Unlandable: s}}
	r.Changes.Incomplete = []string{s}
	r.Network.Names = []Name{{Name: s, Verdict: Refused, Rule: s}}
	r.Network.Connections = []Connection{{Name: s, Proto: s, Verdict: Refused, Rule: s, Reason: s}}
	r.Network.Requests = []Request{{Name: s, Verdict: Refused, Rule: s, Reason: s, Credential: s, Count: 2}, {Name: s, Verdict: Allowed, Rule: s, Reason: s, Credential: s}}
	r.Network.Credentials = []Credential{{Name: s, Requests: 1}}
	r.Network.Found = []Found{{Name: s, What: s, Secret: s, Transform: s, Place: s, Rule: s, Action: Blocked, Count: 2}, {Name: s, What: s, Place: s, Inbound: true, Action: Reported}}
	r.Mounts = []Mount{{Source: raw, Target: raw + "2", Access: s}}
	r.Published = []Published{{Port: 1, Host: s}}
	r.Services = []Service{{Name: s, Image: raw, Digest: s, Health: s, Exit: &Exit{Reason: Failed, Error: s}}}
	r.Audit.Root = s
	r.Notes = []string{s}
	r.Trace.Digest, r.Trace.Incomplete = s, s
	list := r.Processes.List
	for i := range list {
		list[i].Path, list[i].Args, list[i].Digest = raw, []store.Raw{raw, "", raw + "x"}, s
	}
	list[1].Signal, list[2].Path = s, ""
	for range 30 { // a chain
		p := list[len(list)-1]
		p.ID, p.Parent = p.ID+1, p.ID
		list = append(list, p)
	}
	r.Processes.List, r.Processes.Total = list, 12_345_678
	r.Files.Read, r.Files.Denied = []Area{{Path: raw, Files: 1 << 40}}, []Area{{Path: raw, Files: 1}}
	r.Files.Written = []Written{{Path: raw, How: []string{s, s}}, {Path: raw, Inside: true}}
	r.Privileges.Attempts = []Attempt{{What: s, Detail: s, Errno: s, Count: 3}, {What: s, Detail: s}}
	r.Sockets.Total = 3
	r.Sockets.List = []Socket{{Family: s, Type: s, Errno: s, Count: 2}, {Family: s, Type: s}, {Family: "inet", Type: s}}
	return r
}

func FuzzText(f *testing.F) {
	f.Add("plain")
	// Marks of combining class 0, and marks that take a column, where lines end.
	f.Add(strings.Repeat("0\u07a8", 200))
	f.Add(strings.Repeat("a\u07a8\u07a9\u0903\u0903", 60))
	f.Add("\x1b]52;c;AAAA\x07")
	f.Add("a\u202eb\u200b\xff\xfe 日本語 " + strings.Repeat("é", 100))
	f.Fuzz(func(t *testing.T, s string) {
		// Every width and style would take too long; the text picks some.
		width := minWidth + len(s)%(maxWidth-minWidth+1)
		for _, style := range []Style{{All: true}, {Width: minWidth, ASCII: true}, {Width: minWidth, All: true}, {Width: width, Color: true}, {Width: width, All: true, ASCII: true}} {
			holds(t, hostile(s), style)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, r := range []*Receipt{sample(), short(), crowded(), failed()} {
		b, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"schema":"carboy.dev/receipt/v2"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		if _, err := r.Encode(); err != nil {
			t.Fatalf("parsed but not encodable: %v", err)
		}
		if err := Text(&bytes.Buffer{}, r, Style{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRoundTrip(t *testing.T) {
	for _, r := range []*Receipt{sample(), short(), crowded(), failed()} {
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		again, err := back.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, again) {
			t.Errorf("encoding changed:\n%s\n%s", b, again)
		}
		if r.Started != nil && !strings.Contains(string(b), `"started": "2026-03-01T11:00:00Z"`) {
			t.Error("start is not in UTC")
		}
	}
}

func TestParseKeepsLaterAdditionsOut(t *testing.T) {
	b, err := short().Encode()
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	m["later_field"] = true
	b, _ = json.Marshal(m)
	if _, err := Parse(b); err != nil {
		t.Errorf("an addition of a later version: %v", err)
	}
	m["schema"] = "carboy.dev/receipt/v2"
	b, _ = json.Marshal(m)
	if _, err := Parse(b); err == nil {
		t.Error("another version was accepted")
	}
}

func TestValidateRefuses(t *testing.T) {
	if err := sample().validate(); err != nil {
		t.Fatalf("the neighbour that is fine: %v", err)
	}
	for name, spoil := range map[string]func(*Receipt){
		"zero":            func(r *Receipt) { *r = Receipt{} },
		"schema":          func(r *Receipt) { r.Schema = "" },
		"id":              func(r *Receipt) { r.ID = "../../etc" },
		"mode":            func(r *Receipt) { r.Workspace.Mode = "" },
		"reason":          func(r *Receipt) { r.Exit.Reason = "" },
		"code":            func(r *Receipt) { r.Exit.Code = 256 },
		"duration":        func(r *Receipt) { r.Duration = -1 },
		"verdict on name": func(r *Receipt) { r.Network.Names[0].Verdict = "" },
		"verdict on conn": func(r *Receipt) { r.Network.Connections[0].Verdict = "maybe" },
		"verdict on req":  func(r *Receipt) { r.Network.Requests[0].Verdict = "" },
		"action":          func(r *Receipt) { r.Network.Found[0].Action = "" },
		"total of found":  func(r *Receipt) { r.Network.FoundTotal = 2 },
		"total of creds":  func(r *Receipt) { r.Network.CredentialsTotal = 0 },
		"too many requests": func(r *Receipt) {
			r.Network.Requests = make([]Request, MaxRequests+1)
			for i := range r.Network.Requests {
				r.Network.Requests[i].Verdict = Refused
			}
			r.Network.RequestsTotal = MaxRequests + 1
		},
		"total of names":   func(r *Receipt) { r.Network.NamesTotal = 1 },
		"total of changes": func(r *Receipt) { r.Changes.Total = 2 },
		"too many changes": func(r *Receipt) {
			r.Changes.List = make([]Change, MaxChanges+1)
			r.Changes.Total = MaxChanges + 1
		},
		"too many notes": func(r *Receipt) { r.Notes = make([]string, maxNotes+1) },
	} {
		r := sample()
		spoil(r)
		if r.validate() == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := r.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 1<<20 - 1: "1 MiB", 8 << 30: "8 GiB", 1 << 62: "4096 PiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0 ms", 131 * time.Millisecond: "131 ms", 2414 * time.Millisecond: "2.41 s", 90 * time.Second: "1 min 30 s", 30 * time.Minute: "30 min", 2 * time.Hour: "2 h", 150 * time.Minute: "2 h 30 min"} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestWeakFacts: a receipt says what a backend's facts do not prove, and what it can't give.
func TestWeakFacts(t *testing.T) {
	for _, x := range []struct {
		facts bottle.Facts
		want  string
	}{
		{"", ""}, {bottle.FactsKernel, ""},
		{bottle.FactsNone, "docker sends no facts"},
		{bottle.FactsGuest, "docker come from inside the guest"},
	} {
		r := sample()
		r.Isolation.Backend = "docker"
		r.Isolation.Posture.Facts = x.facts
		r.Isolation.Lacks = []bottle.Lack{{What: bottle.CapLiveFreeze, Why: "files only"}, {What: bottle.CapChannels}}
		if x.facts == bottle.FactsNone {
			r.Trace, r.Processes, r.Files, r.Privileges, r.Sockets = nil, nil, nil, nil, nil
		}
		why := r.Isolation.WeakFacts()
		if (why == "") != (x.want == "") || !strings.Contains(why, x.want) {
			t.Errorf("%q: %q", x.facts, why)
		}
		unknown := strings.Join(r.unknown(), "\n")
		if x.want != "" && !strings.Contains(unknown, x.want) || x.want == "" && strings.Contains(unknown, "guest") {
			t.Errorf("%q: not known is %s", x.facts, unknown)
		}
		var b bytes.Buffer
		if err := Text(&b, r, Style{Width: 100}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "live-freeze, channels") {
			t.Errorf("what is lacking is not shown:\n%s", b.String())
		}
	}
	if (Isolation{}).WeakFacts() != "" {
		t.Error("of a run that made no bottle nothing is said")
	}
}
