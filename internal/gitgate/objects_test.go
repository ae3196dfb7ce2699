package gitgate

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is an entry of a tree, in git's form.
func entry(mode, name, id string) string {
	b, _ := hex.DecodeString(id)
	return mode + " " + name + "\x00" + string(b)
}

func blob(t *testing.T, w, text string) string {
	return pipeGit(t, w, text, "hash-object", "-w", "--stdin")
}

// rawTree commits a tree that git itself would not write.
func rawTree(t *testing.T, w string, entries ...string) {
	t.Helper()
	id := pipeGit(t, w, strings.Join(entries, ""), "hash-object", "-w", "-t", "tree", "--literally", "--stdin")
	git(t, w, "update-ref", "refs/heads/trunk", pipeGit(t, w, "", "commit-tree", "-p", "HEAD", "-m", "x", id))
}

func modules(t *testing.T, w, text string) {
	rawTree(t, w, entry("100644", ".gitmodules", blob(t, w, text)))
}

// harmful lists objects that do harm on checkout, with git's names for the faults.
var harmful = map[string]struct {
	says string
	put  func(t *testing.T, w string)
}{
	"a directory .git": {"hasDotgit", func(t *testing.T, w string) {
		hooks := pipeGit(t, w, "100755 blob "+blob(t, w, "#!/bin/sh\nid\n")+"\tpre-commit\n", "mktree")
		rawTree(t, w, entry("40000", ".git", hooks))
	}},
	"a directory .GIT":                   {"hasDotgit", func(t *testing.T, w string) { rawTree(t, w, entry("40000", ".GIT", emptyTree(t, w))) }},
	"a directory that NTFS takes for it": {"hasDotgit", func(t *testing.T, w string) { rawTree(t, w, entry("40000", "git~1", emptyTree(t, w))) }},
	"a directory that HFS takes for it": {"hasDotgit", func(t *testing.T, w string) {
		rawTree(t, w, entry("40000", ".g\u200cit", emptyTree(t, w)))
	}},
	"an entry ..":           {"hasDotdot", func(t *testing.T, w string) { rawTree(t, w, entry("40000", "..", emptyTree(t, w))) }},
	"an entry .":            {"hasDot", func(t *testing.T, w string) { rawTree(t, w, entry("40000", ".", emptyTree(t, w))) }},
	"an entry with a slash": {"fullPathname", func(t *testing.T, w string) { rawTree(t, w, entry("100644", "a/../../x", blob(t, w, "x"))) }},
	"two entries of one name": {"duplicateEntries", func(t *testing.T, w string) {
		rawTree(t, w, entry("100644", "a", blob(t, w, "x")), entry("100644", "a", blob(t, w, "y")))
	}},
	"entries out of order": {"treeNotSorted", func(t *testing.T, w string) {
		rawTree(t, w, entry("100644", "b", blob(t, w, "x")), entry("100644", "a", blob(t, w, "y")))
	}},
	"a submodule's URL that is an option": {"gitmodulesUrl", func(t *testing.T, w string) { modules(t, w, "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n") }},
	"a submodule's path that is an option": {"gitmodulesPath", func(t *testing.T, w string) {
		modules(t, w, "[submodule \"x\"]\n\tpath = --upload-pack=x\n\turl = https://e.org/x\n")
	}},
	"a submodule's name that leads upward": {"gitmodulesName", func(t *testing.T, w string) {
		modules(t, w, "[submodule \"../../x\"]\n\tpath = x\n\turl = https://e.org/x\n")
	}},
	"a submodule with a command": {"gitmodulesUpdate", func(t *testing.T, w string) {
		modules(t, w, "[submodule \"x\"]\n\tpath = x\n\turl = https://e.org/x\n\tupdate = !id\n")
	}},
	"a submodule's URL with a new line": {"gitmodulesUrl", func(t *testing.T, w string) {
		modules(t, w, "[submodule \"x\"]\n\tpath = x\n\turl = \"https://e.org/\\nhost=other\"\n")
	}},
	"a .gitmodules that is a link":      {"gitmodulesSymlink", func(t *testing.T, w string) { rawTree(t, w, entry("120000", ".gitmodules", blob(t, w, "/etc/passwd"))) }},
	"a .gitmodules by its name on NTFS": {"gitmodules", func(t *testing.T, w string) { rawTree(t, w, entry("120000", "GITMOD~1", blob(t, w, "x"))) }},
	"a .gitattributes with too long a line": {"gitattributesLineLength", func(t *testing.T, w string) {
		rawTree(t, w, entry("100644", ".gitattributes", blob(t, w, "a "+strings.Repeat("x", 3000)+"\n")))
	}},
	"a commit with a zero byte in its head": {"nulInHeader", func(t *testing.T, w string) {
		literalCommit(t, w, "author A <a@b> 1 +0000\ncommitter A\x00 <a@b> 1 +0000\n")
	}},
	"a commit without an author": {"missingAuthor", func(t *testing.T, w string) { literalCommit(t, w, "committer A <a@b> 1 +0000\n") }},
	"a commit with a date that overflows": {"badDateOverflow", func(t *testing.T, w string) {
		literalCommit(t, w, "author A <a@b> 99999999999999999999 +0000\ncommitter A <a@b> 1 +0000\n")
	}},
	"a .gitmodules that was pushed before as a file of another name": {"gitmodulesUrl", func(t *testing.T, w string) {
		bad := blob(t, w, "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n")
		rawTree(t, w, entry("100644", "innocent.txt", bad))
		git(t, w, "push", "-q", "origin", "trunk")
		rawTree(t, w, entry("100644", ".gitmodules", bad))
	}},
}

func emptyTree(t *testing.T, w string) string { return pipeGit(t, w, "", "mktree") }

func literalCommit(t *testing.T, w, people string) {
	t.Helper()
	head := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	tree := strings.TrimSpace(git(t, w, "rev-parse", "HEAD^{tree}"))
	id := pipeGit(t, w, "tree "+tree+"\nparent "+head+"\n"+people+"\nx\n", "hash-object", "-w", "-t", "commit", "--literally", "--stdin")
	git(t, w, "update-ref", "refs/heads/trunk", id)
}

// Harmful objects are refused before upstream sees them, and leave nothing behind.
func TestHarmfulObjects(t *testing.T) {
	up := newUpstreamRepo(t)
	seed := filepath.Join(t.TempDir(), "seed")
	git(t, filepath.Dir(seed), "clone", "-q", up, seed)
	for name, c := range harmful {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine := copyOf(t, up)
			cfg := Config{Repos: []Repo{{Name: "app", URL: mine}}, Dir: privateDir(t)}
			_, url := newGate(t, cfg)
			w := copyOf(t, seed)
			git(t, w, "remote", "set-url", "origin", url+"/app.git")
			c.put(t, w)
			before := git(t, mine, "rev-parse", "trunk")
			refusedPush(t, w, c.says)
			if after := git(t, mine, "rev-parse", "trunk"); after != before {
				t.Error("upstream changed")
			}
			if out, err := tryGit(t, mine, "cat-file", "-e", strings.TrimSpace(git(t, w, "rev-parse", "trunk"))); err == nil {
				t.Errorf("upstream has the commit %s", out)
			}
			left, _ := filepath.Glob(cfg.Dir + "/push-*")
			if len(left) != 0 {
				t.Errorf("quarantine is left: %q", left)
			}
			// The counter-check: an ordinary push succeeds afterwards.
			git(t, w, "reset", "-q", "--hard", strings.TrimSpace(before))
			commitFile(t, w, "fine.txt", "x\n")
			git(t, w, "push", "-q", "origin", "trunk")
		})
	}
}

func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rawPush returns a push as git sends it: a command and a pack of HEAD.
func rawPush(t *testing.T, w string) (head string, pack []byte) {
	t.Helper()
	commitFile(t, w, "raw.txt", "raw\n")
	oldID, newID := strings.TrimSpace(git(t, w, "rev-parse", "HEAD~1")), strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	p := pipeGitRaw(t, w, newID+"\n^"+oldID+"\n", "pack-objects", "--revs", "--stdout", "-q")
	return oldID + " " + newID + " refs/heads/trunk\x00 report-status side-band-64k agent=git/2.39.5", p
}

func pipeGitRaw(t *testing.T, dir, in string, args ...string) []byte {
	t.Helper()
	f := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(f+".in", []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	return rawOutput(t, dir, f+".in", args...)
}

func post(t *testing.T, url, service, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-"+service+"-request")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func line(s string) string { return string(appendLine(nil, s)) }

// Malformed packs, sent without git.
func TestHostilePacks(t *testing.T) {
	up := newUpstreamRepo(t)
	g, base := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Limits: Bounds{Pack: 64 << 10, Objects: 100, Refs: 3}})
	w := cloneOf(t, base)
	cmd, pack := rawPush(t, w)
	commands := line(cmd) + "0000"
	at := strings.Index(cmd, "\x00")
	caps := cmd[at:]
	oldID := cmd[:40]
	zero := strings.Repeat("0", 40)
	before := git(t, up, "for-each-ref")
	changed := bytes.Clone(pack)
	changed[len(changed)-25] ^= 1
	many := bytes.Clone(pack)
	many[10] = 0xff
	ref := func(name string) string { return line(oldID+" "+cmd[41:81]+" "+name+caps) + "0000" + string(pack) }
	packs := map[string]struct{ body, says string }{
		"something after the pack":            {commands + string(pack) + "something more", "data follows the pack"},
		"another pack after it":               {commands + string(pack) + string(pack), "data follows the pack"},
		"a pack that is cut":                  {commands + string(pack[:len(pack)-30]), "git gate: "},
		"a pack with another checksum":        {commands + string(changed), "git gate: "},
		"a number of objects too high":        {commands + string(many), "objects, more than 100"},
		"a pack that is large":                {commands + "PACK\x00\x00\x00\x02\x00\x00\x00\x01" + "\xbf\xbf\x3f" + strings.Repeat("\x78\x01", 40<<10), "git gate: "},
		"no pack":                             {commands, "no pack came"},
		"no pack, but text":                   {commands + "hello, this is no pack at all", "no pack came"},
		"a pack of another version":           {commands + "PACK\x00\x00\x00\x09" + string(pack[8:]), "git gate: "},
		"a pack with what only deletes":       {line(oldID+" "+zero+" refs/heads/trunk"+caps) + "0000" + string(pack), "only deletes"},
		"a reference outside of refs/":        {ref("HEAD"), "of the form refs/"},
		"a reference that leads upward":       {ref("refs/heads/../../config"), "git gate: "},
		"a reference with a lock's name":      {ref("refs/heads/x.lock"), "ends in .lock"},
		"a reference with a new line":         {ref("refs/heads/x\ny"), "characters that git does not allow"},
		"a reference with an escape":          {ref("refs/heads/x\x1b[2J"), "characters that git does not allow"},
		"a reference that replaces":           {ref("refs/replace/" + oldID), "another history"},
		"a reference twice":                   {line(cmd) + line(oldID+" "+zero+" refs/heads/trunk") + "0000" + string(pack), "twice"},
		"too many references":                 {line(cmd) + line(zero+" "+cmd[41:81]+" refs/heads/a") + line(zero+" "+cmd[41:81]+" refs/heads/b") + line(zero+" "+cmd[41:81]+" refs/heads/c") + "0000" + string(pack), "more than 3 references"},
		"a capability nobody offered":         {line(cmd+" push-cert=x") + "0000" + string(pack), "was not offered"},
		"a signed push":                       {line("push-cert\x00 report-status side-band-64k") + "0000" + string(pack), "signed pushes"},
		"no side band":                        {line(cmd[:at]+"\x00report-status") + "0000" + string(pack), "side band"},
		"an id that is none":                  {line(strings.ToUpper(cmd[:40])+cmd[40:]) + "0000" + string(pack), "a malformed command"},
		"a length that is none":               {"zzzz" + commands, "malformed"},
		"a length of three":                   {"0003" + commands, "malformed"},
		"a length with a sign":                {"+00a123456" + commands, "malformed"},
		"an end within a line":                {"00ffabc", "ends too early"},
		"a delimiter among commands":          {line(cmd) + "0001" + string(pack), "delimiter"},
		"objects that upstream does not have": {line(oldID+" "+strings.Repeat("12", 20)+" refs/heads/trunk"+caps) + "0000" + string(pack), "upstream"},
	}
	refuse := func(name string) {
		c := packs[name]
		t.Run(name, func(t *testing.T) {
			code, out := post(t, base+"/app.git/git-receive-pack", receivePack, c.body)
			if !strings.Contains(out, c.says) || strings.Contains(out, "ok refs/heads/trunk") {
				t.Errorf("HTTP %d, without %q: %q", code, c.says, out)
			}
			if got := git(t, up, "for-each-ref"); got != before {
				t.Error("upstream changed")
			}
			left, _ := filepath.Glob(g.cfg.Dir + "/push-*")
			if len(left) != 0 {
				t.Errorf("quarantine is left: %q", left)
			}
		})
	}
	for name := range packs {
		refuse(name)
		g.aheadFrom = packHead // once more, with reading ahead
		refuse(name)
		g.aheadFrom = aheadFrom
	}
	// The counter-check: a valid push, plain and with gzip.
	if code, out := post(t, base+"/app.git/git-receive-pack", receivePack, string(gzipped(commands+string(pack))), "Content-Encoding", "gzip"); !strings.Contains(out, "ok refs/heads/trunk") {
		t.Errorf("HTTP %d: %q", code, out)
	}
	if git(t, up, "for-each-ref") == before {
		t.Error("the neighbour changed nothing")
	}
}

// Requests that git never sends.
func TestHostileRequests(t *testing.T) {
	up := newUpstreamRepo(t)
	git(t, up, "config", "uploadpack.allowFilter", "true")
	_, base := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Limits: Bounds{Request: 64 << 10}})
	id := strings.TrimSpace(git(t, up, "rev-parse", "trunk"))
	fetch := func(args ...string) string {
		s := line("command=fetch\n") + line("object-format=sha1\n") + "0001"
		for _, a := range args {
			s += line(a + "\n")
		}
		return s + "0000"
	}
	for name, c := range map[string]struct{ body, says string }{
		"where else to fetch from":        {fetch("want "+id, "packfile-uris https", "done"), "argument that fetch does not have"},
		"a side band for everything":      {fetch("want "+id, "sideband-all", "done"), "argument that fetch does not have"},
		"an option of the server's":       {line("command=fetch") + line("server-option=x") + "00010000", "was not offered"},
		"information about objects":       {line("command=object-info") + "0001" + line("oid "+id) + "0000", "neither ls-refs nor fetch"},
		"bundles":                         {line("command=bundle-uri") + "0000", "neither ls-refs nor fetch"},
		"two commands":                    {fetch("want "+id, "done") + fetch("want "+id, "done"), "more than one command"},
		"no command":                      {line("want "+id) + "0000", "neither ls-refs nor fetch"},
		"an id that is none":              {fetch("want ../../etc/passwd", "done"), "argument that fetch does not have"},
		"an option in the place of an id": {fetch("want --upload-pack=id", "done"), "argument that fetch does not have"},
		"a filter with a path":            {fetch("want "+id, "filter sparse:path=/etc/passwd", "done"), "argument that fetch does not have"},
		"filters within filters":          {fetch("want "+id, "filter combine:combine:blob:none", "done"), "argument that fetch does not have"},
		"a depth that is none":            {fetch("want "+id, "deepen -1", "done"), "argument that fetch does not have"},
		"an end within a line":            {"00ff", "not a request that git makes"},
		"an end before the flush":         {line("command=fetch"), "not a request that git makes"},
		"a length that is none":           {"-001", "not a request that git makes"},
		"a request without end":           {strings.Repeat(line("command=ls-refs"), 10_000), "more than 65536 bytes"},
		"a prefix with an escape":         {line("command=ls-refs") + "0001" + line("ref-prefix \x1b[2J") + "0000", "ls-refs does not have"},
	} {
		t.Run(name, func(t *testing.T) {
			_, out := post(t, base+"/app.git/git-upload-pack", uploadPack, c.body, "Git-Protocol", "version=2")
			if !strings.Contains(out, c.says) || strings.Contains(out, "PACK") {
				t.Errorf("without %q: %q", c.says, out)
			}
		})
	}
	for name, c := range map[string]struct{ body, says string }{
		"the first protocol without a side band": {line("want "+id+" ofs-delta\n") + "0000" + line("done\n"), "was not offered"},
		"the first protocol, lines after done":   {line("want "+id+" side-band-64k\n") + "0000" + line("done\n") + line("have "+id), "after done"},
		"the first protocol, nothing wanted":     {"00000009done\n", "nothing is wanted"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, out := post(t, base+"/app.git/git-upload-pack", uploadPack, c.body); !strings.Contains(out, c.says) || strings.Contains(out, "PACK") {
				t.Errorf("without %q: %q", c.says, out)
			}
		})
	}
	bomb := string(gzipped(strings.Repeat(line("command=ls-refs"), 2_000_000)))
	if _, out := post(t, base+"/app.git/git-upload-pack", uploadPack, bomb, "Content-Encoding", "gzip"); !strings.Contains(out, "more than 65536 bytes") {
		t.Errorf("a bomb of gzip: %q", out)
	}
	// The counter-checks: valid requests.
	if _, out := post(t, base+"/app.git/git-upload-pack", uploadPack, fetch("want "+id, "done"), "Git-Protocol", "version=2"); !strings.Contains(out, "PACK") {
		t.Errorf("an ordinary fetch: %q", out)
	}
	if _, out := post(t, base+"/app.git/git-upload-pack", uploadPack, string(gzipped(fetch("want "+id, "filter blob:none", "deepen 1", "done"))), "Git-Protocol", "version=2", "Content-Encoding", "gzip"); !strings.Contains(out, "PACK") && !strings.Contains(out, "shallow") {
		t.Errorf("an ordinary fetch: %q", out)
	}
	for path, want := range map[string]int{
		"/app.git/info/refs?service=git-upload-pack":     200,
		"/app.git//info/refs?service=git-upload-pack":    200,
		"/app.git/info/refs?service=git-receive-pack":    200,
		"/app.git/info/refs":                             403,
		"/app.git/info/refs?service=git-upload-archive":  403,
		"/app.git/info/refs?service=git-upload-pack&x=y": 403,
		"/app.git/HEAD":                                   403,
		"/app.git/objects/info/packs":                     403,
		"/app.git/config":                                 403,
		"/other.git/info/refs?service=git-upload-pack":    404,
		"/app/info/refs?service=git-upload-pack":          404,
		"/x/app.git/info/refs?service=git-upload-pack":    404,
		"/..%2fapp.git/info/refs?service=git-upload-pack": 404,
		"/app.git/..%2f..%2fetc/passwd":                   404,
		"/":                                               404,
		"/app.git/git-upload-pack":                        405,
		"/app.git/info/lfs/objects/batch":                 501,
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("GET %s: %d, want %d", path, res.StatusCode, want)
		}
	}
	if code, _ := post(t, base+"/app.git/git-upload-pack", "other", "0000"); code != 400 && code != 200 {
		t.Errorf("another type of content: %d", code)
	}
}
