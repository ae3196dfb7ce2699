package gitgate

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/secret"
)

const (
	knownSecret = "Zk3vR9pLqW8xT2nB7mYcD4hJ"
	harmless    = "a-word-of-no-consequence"
)

// smuggler puts s into a push from the work tree w, and returns what to push besides trunk.
type smuggler struct {
	name string
	put  func(t *testing.T, w, s string) []string
	says string // the place that the gate must report
}

func inFile(path string, form func(string) []byte) func(*testing.T, string, string) []string {
	return func(t *testing.T, w, s string) []string {
		commitFile(t, w, path, string(form(s)))
		return nil
	}
}

func text(format string) func(string) []byte {
	return func(s string) []byte { return fmt.Appendf(nil, format, s) }
}

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.Bytes()
}

func wide(order func(uint16) []byte) func(string) []byte {
	return func(s string) []byte {
		var b []byte
		for _, u := range utf16.Encode([]rune(s)) {
			b = append(b, order(u)...)
		}
		return b
	}
}

// pipeGit runs git with in as its input.
func pipeGit(t testing.TB, dir, in string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir, c.Stdin = dir, strings.NewReader(in)
	c.Env = gittest.Env(nil)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// rawCommit makes a commit object of the given head lines and message.
func rawCommit(t *testing.T, w, lines, message string) {
	t.Helper()
	tree, parent := strings.TrimSpace(git(t, w, "rev-parse", "HEAD^{tree}")), strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	id := pipeGit(t, w, fmt.Sprintf("tree %s\nparent %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n%s\n%s", tree, parent, lines, message),
		"hash-object", "-w", "-t", "commit", "--stdin")
	git(t, w, "reset", "-q", "--hard", id)
}

var smugglers = []smuggler{
	{"in a file", inFile("a/f.txt", text("one\nkey = %s\n")), "a/f.txt:2 in commit"},
	{"in a file without an end of line", inFile("f", text("%s")), "f:1 in commit"},
	{"in a binary file", inFile("f.bin", text("\x00\x01\x02%s\x00\xff\xfe")), "f.bin"},
	{"in a symbolic link", func(t *testing.T, w, s string) []string {
		if err := os.Symlink(s, w+"/link"); err != nil {
			t.Fatal(err)
		}
		git(t, w, "add", "-A")
		git(t, w, "commit", "-qm", "link")
		return nil
	}, "link:1"},
	{"added and removed again", func(t *testing.T, w, s string) []string {
		commitFile(t, w, "gone.txt", s+"\n")
		git(t, w, "rm", "-q", "gone.txt")
		git(t, w, "commit", "-qm", "tidy")
		return nil
	}, "gone.txt:1 in commit"},
	{"in a branch that was merged", func(t *testing.T, w, s string) []string {
		git(t, w, "checkout", "-q", "-b", "side")
		commitFile(t, w, "side.txt", s+"\n")
		git(t, w, "rm", "-q", "side.txt")
		git(t, w, "commit", "-qm", "tidy")
		git(t, w, "checkout", "-q", "trunk")
		git(t, w, "merge", "-q", "--no-ff", "-m", "merge", "side")
		return nil
	}, "side.txt:1 in commit"},
	{"under the second of two references", func(t *testing.T, w, s string) []string {
		git(t, w, "checkout", "-q", "-b", "second")
		commitFile(t, w, "second.txt", s+"\n")
		return []string{"second"}
	}, "second.txt:1"},
	{"in a commit's message", func(t *testing.T, w, s string) []string {
		git(t, w, "commit", "-q", "--allow-empty", "-m", "see\n\n"+s)
		return nil
	}, "the text of commit"},
	{"as an author's name", func(t *testing.T, w, s string) []string {
		git(t, w, "commit", "-q", "--allow-empty", "-m", "x", "--author", s+" <a@example.org>")
		return nil
	}, "the text of commit"},
	{"as an author's address", func(t *testing.T, w, s string) []string {
		git(t, w, "commit", "-q", "--allow-empty", "-m", "x", "--author", "A <"+s+"@example.org>")
		return nil
	}, "the text of commit"},
	{"in a header of a commit", func(t *testing.T, w, s string) []string {
		rawCommit(t, w, "x-note "+s+"\n", "x\n")
		return nil
	}, "the text of commit"},
	{"in a commit's signature", func(t *testing.T, w, s string) []string {
		rawCommit(t, w, "gpgsig -----BEGIN PGP SIGNATURE-----\n "+s+"\n -----END PGP SIGNATURE-----\n", "x\n")
		return nil
	}, "the text of commit"},
	{"in a tag's message", func(t *testing.T, w, s string) []string {
		git(t, w, "tag", "-a", "-m", s, "v1")
		return []string{"v1"}
	}, "the text of tag"},
	{"in a tag of a tag", func(t *testing.T, w, s string) []string {
		git(t, w, "tag", "-a", "-m", s, "inner")
		git(t, w, "tag", "-a", "-m", "fine", "outer", "inner")
		return []string{"outer"}
	}, "the text of tag"},
	{"as a tagger's name", func(t *testing.T, w, s string) []string {
		git(t, w, "-c", "user.name="+s, "tag", "-a", "-m", "m", "v2")
		id := pipeGit(t, w, fmt.Sprintf("object %stype commit\ntag v3\ntagger %s <a@b> 1 +0000\n\nm\n", git(t, w, "rev-parse", "HEAD"), s), "hash-object", "-w", "-t", "tag", "--stdin")
		git(t, w, "update-ref", "refs/tags/v3", id)
		return []string{"v3"}
	}, "the text of tag"},
	{"in a blob that a tag names", func(t *testing.T, w, s string) []string {
		id := pipeGit(t, w, s, "hash-object", "-w", "--stdin")
		git(t, w, "tag", "loose", id)
		return []string{"loose"}
	}, "object "},
	{"in a tree that a tag names", func(t *testing.T, w, s string) []string {
		id := pipeGit(t, w, s, "hash-object", "-w", "--stdin")
		git(t, w, "tag", "tree", pipeGit(t, w, "100644 blob "+id+"\tf\n", "mktree"))
		return []string{"tree"}
	}, "object "},
	{"in a note", func(t *testing.T, w, s string) []string {
		git(t, w, "notes", "add", "-m", s)
		return []string{"refs/notes/commits"}
	}, "in commit"},
	{"as a file's name", func(t *testing.T, w, s string) []string {
		commitFile(t, w, "dir/"+s+".txt", "x\n")
		return nil
	}, "a file's name in commit"},
	{"as a directory's name", func(t *testing.T, w, s string) []string {
		commitFile(t, w, "dir/"+s+"/x", "x\n")
		return nil
	}, "a file's name in commit"},
	{"as the name of a file that is gone", func(t *testing.T, w, s string) []string {
		commitFile(t, w, s, "x\n")
		git(t, w, "rm", "-q", s)
		git(t, w, "commit", "-qm", "tidy")
		return nil
	}, "a file's name in commit"},
	{"as a branch's name", func(t *testing.T, w, s string) []string {
		git(t, w, "branch", "b/"+s)
		return []string{"b/" + s}
	}, "a reference's name"},
	{"as the name of a reference to delete", func(t *testing.T, w, s string) []string { return []string{":refs/heads/" + s} }, "a reference's name"},
	{"in a push option", func(t *testing.T, w, s string) []string {
		return []string{"--push-option=" + s, "HEAD:refs/heads/o-" + s[:1]}
	}, "a push option"},
	{"in a submodule's URL", inFile(".gitmodules", text("[submodule \"x\"]\n\tpath = x\n\turl = https://user:%s@example.org/x\n")), ".gitmodules:3"},
	{"as a submodule's commit", func(t *testing.T, w, s string) []string {
		git(t, w, "update-index", "--add", "--cacheinfo", fmt.Sprintf("160000,%x,sub", s[:20]))
		git(t, w, "commit", "-qm", "x")
		return nil
	}, "a submodule's commit in commit"},
	{"in .gitattributes", inFile(".gitattributes", text("# %s\n*.txt text\n")), ".gitattributes:1"},
	{"in a pointer of LFS", inFile("big.iso", text("version https://git-lfs.github.com/spec/v1\next-0-x sha256:%s\noid sha256:"+strings.Repeat("4d", 32)+"\nsize 1\n")), "big.iso:2"},
	{"in UTF-16", inFile("w.txt", wide(func(u uint16) []byte { return []byte{byte(u), byte(u >> 8)} })), "w.txt"},
	{"in UTF-16 of the other order", inFile("w.txt", wide(func(u uint16) []byte { return []byte{byte(u >> 8), byte(u)} })), "w.txt"},
	{"in base64", inFile("b.txt", func(s string) []byte {
		return []byte("data: " + base64.StdEncoding.EncodeToString([]byte("xy"+s+"z")) + "\n")
	}), "b.txt:1"},
	{"in hexadecimal", inFile("h.txt", func(s string) []byte { return []byte(hex.EncodeToString([]byte(s)) + "\n") }), "h.txt:1"},
	{"backwards", inFile("r.txt", func(s string) []byte {
		b := []byte(s)
		for i := range len(b) / 2 {
			b[i], b[len(b)-1-i] = b[len(b)-1-i], b[i]
		}
		return b
	}), "r.txt:1"},
	{"escaped for URLs", inFile("u.txt", func(s string) []byte {
		return []byte("?q=" + url.QueryEscape(s[:4]) + strings.ToUpper(fmt.Sprintf("%%%x", s[4])) + s[5:])
	}), "u.txt"},
	{"in gzip", inFile("z.gz", gzipped), "z.gz"},
	{"in zlib", inFile("z", func(s string) []byte {
		var b bytes.Buffer
		z := zlib.NewWriter(&b)
		_, _ = z.Write([]byte(strings.Repeat("some text before it\n", 50) + s))
		_ = z.Close()
		return b.Bytes()
	}), "z"},
	{"in base64 of gzip", inFile("z.txt", func(s string) []byte { return []byte(base64.StdEncoding.EncodeToString(gzipped(s))) }), "z.txt"},
	{"in a zip", inFile("z.zip", func(s string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		f, _ := z.Create("in/f")
		_, _ = f.Write([]byte(strings.Repeat("x ", 200) + s))
		_ = z.Close()
		return b.Bytes()
	}), "z.zip"},
	{"in a gzip in a gzip", inFile("z.gz", func(s string) []byte { return gzipped(string(gzipped(s))) }), "z.gz"},
	{"at the end of what is large", inFile("large.txt", func(s string) []byte {
		return []byte(strings.Repeat("0123456789 abcdefg\n", 80_000) + s + "\n")
	}), "large.txt:80001"},
	{"in a line that is long", inFile("long.txt", func(s string) []byte {
		return []byte(strings.Repeat("word ", 50_000) + s + strings.Repeat(" word", 50_000))
	}), "long.txt:1"},
	{"by a delta of a file that was there", func(t *testing.T, w, s string) []string {
		r := rand.New(rand.NewPCG(1, 2))
		var lines []string
		for range 2000 {
			lines = append(lines, fmt.Sprintf("line %d %d", r.Uint64(), r.Uint64()))
		}
		commitFile(t, w, "d.txt", strings.Join(lines, "\n"))
		lines[1000] += " " + s
		commitFile(t, w, "d.txt", strings.Join(lines, "\n"))
		git(t, w, "repack", "-q", "-a", "-d", "-f", "--depth=50")
		return nil
	}, "d.txt:1001"},
	{"in what is only there as a delta", func(t *testing.T, w, s string) []string {
		r := rand.New(rand.NewPCG(5, 6))
		var lines []string
		for range 2000 {
			lines = append(lines, fmt.Sprintf("line %d %d", r.Uint64(), r.Uint64()))
		}
		plain := lines[1000]
		lines[1000] += " " + s
		commitFile(t, w, "d.txt", strings.Join(lines, "\n"))
		lines[1000] = plain
		commitFile(t, w, "d.txt", strings.Join(lines, "\n")+strings.Repeat("\nmore", 50)) // git has the larger and newer one whole
		git(t, w, "repack", "-q", "-a", "-d", "-f", "--depth=50")
		return nil
	}, "d.txt:1001"},
	{"in a tree with what was there before", func(t *testing.T, w, s string) []string {
		write(t, w+"/f.txt", s)
		git(t, w, "add", "-A")
		git(t, w, "commit", "-qm", "with all")
		git(t, w, "revert", "--no-edit", "HEAD")
		return nil
	}, "f.txt:1"},
}

// knownOnly lists the ways that work only for a known secret. Of a token, no part would be
// recognisable.
var knownOnly = map[string]bool{"as a submodule's commit": true, "backwards": true, "in base64": true, "in hexadecimal": true}

// A push with a secret anywhere is refused, with the place. The same push with a harmless
// text succeeds. Both known secrets and texts in the form of a token are tried.
func TestSmuggle(t *testing.T) {
	up := newUpstreamRepo(t)
	git(t, up, "config", "receive.advertisePushOptions", "true")
	seed := filepath.Join(t.TempDir(), "seed")
	git(t, filepath.Dir(seed), "clone", "-q", up, seed)
	cfg := Config{Secrets: func() map[string]secret.Value {
		return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
	}}
	for i := range smugglers {
		cfg.Repos = append(cfg.Repos, Repo{Name: fmt.Sprintf("r%d", i), URL: copyOf(t, up)})
	}
	// Two gates: one reads such small packs after git has stored them, the other reads
	// ahead.
	_, later := newGate(t, cfg)
	g, base := newGate(t, cfg)
	g.aheadFrom = packHead
	for i, s := range smugglers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			base := base
			for _, what := range []string{harmless, knownSecret, "ghp_" + "x7Kq2mN9vR4tY8wE1zP5sD3fG6hJ0kL2bC4a"} {
				if what[0] == 'g' && knownOnly[s.name] {
					continue
				}
				if what[0] == 'g' {
					base = later
				}
				w := copyOf(t, seed)
				args := append([]string{"push", "--force", fmt.Sprintf("%s/r%d.git", base, i), "trunk"}, s.put(t, w, what)...)
				out, err := tryGit(t, w, args...)
				if what == harmless {
					if err != nil {
						t.Errorf("its neighbour is refused: %s", out)
					}
					continue
				}
				if err == nil || !strings.Contains(out, "refused by the git gate") {
					t.Fatalf("%s... left:\n%s", what[:4], out)
				}
				if !strings.Contains(out, s.says) {
					t.Errorf("not said where (%q):\n%s", s.says, out)
				}
				if strings.Contains(out, what) && !strings.Contains(s.says, "name") {
					t.Errorf("git's output has the secret:\n%s", out)
				}
			}
		})
	}
}

func copyOf(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "r")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A secret is split over two pushes, neither of which has enough of it. The second is
// refused.
func TestSplitOverPushes(t *testing.T) {
	t.Parallel()
	for name, halves := range map[string][2]string{
		"two halves": {knownSecret[:12], knownSecret[12:]},
		"neighbour":  {harmless[:12], harmless[12:]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}}, Secrets: func() map[string]secret.Value {
				return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
			}})
			w := cloneOf(t, url)
			commitFile(t, w, "one.txt", halves[0]+"\n")
			git(t, w, "push", "-q", "origin", "trunk")
			commitFile(t, w, "two.txt", halves[1]+"\n")
			out, err := tryGit(t, w, "push", "origin", "trunk")
			if refused := err != nil; refused != (name != "neighbour") {
				t.Errorf("refused: %v\n%s", refused, out)
			}
		})
	}
}

// A line that says gitleaks:allow makes the gate ask a person, and does nothing else.
func TestInlineAllow(t *testing.T) {
	t.Parallel()
	approve := func(context.Context, Allow) error { return nil }
	for name, c := range map[string]struct {
		line string
		ask  func(context.Context, Allow) error
		goes bool
	}{
		"approved":                     {"k = " + awsKey + " # gitleaks:allow", approve, true},
		"nobody to ask":                {"k = " + awsKey + " # gitleaks:allow", nil, false},
		"on another line":              {"k = " + awsKey + "\n# gitleaks:allow", approve, false},
		"of a secret of the host's":    {"k = " + knownSecret + " # gitleaks:allow", approve, false},
		"beside what is encoded":       {"k = " + base64.StdEncoding.EncodeToString([]byte(knownSecret)) + " # gitleaks:allow", approve, false},
		"one line allowed, one not":    {"k = " + awsKey + " # gitleaks:allow\nl = " + awsKey, approve, false},
		"the wait ends with the asker": {"k = " + awsKey + " # gitleaks:allow", func(context.Context, Allow) error { return context.DeadlineExceeded }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			var got []Allow
			cfg := Config{Repos: []Repo{{Name: "app", URL: up}}, Secrets: func() map[string]secret.Value {
				return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
			}}
			if c.ask != nil {
				cfg.Ask = func(ctx context.Context, a Allow) (string, error) {
					got = append(got, a)
					return "me (web)", c.ask(ctx, a)
				}
			}
			events := record(&cfg)
			_, url := newGate(t, cfg)
			w := cloneOf(t, url)
			commitFile(t, w, "k.py", "x\n"+c.line+"\n")
			out, err := tryGit(t, w, "push", "origin", "trunk")
			if goes := err == nil; goes != c.goes {
				t.Fatalf("went on: %v\n%s", goes, out)
			}
			if !c.goes {
				return
			}
			head := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
			a := got[0]
			if a.Repo != "app" || a.Ref != "refs/heads/trunk" || a.Commit != head || a.File != "k.py" || a.Line != 2 || a.Rule != "aws-access-token" {
				t.Errorf("asked %+v", a)
			}
			if strings.Contains(a.Text, awsKey) || !strings.Contains(a.Code.UnsafeString(), awsKey) {
				t.Errorf("shown %q", a.Text)
			}
			if f := events.last("push").Findings; len(f) != 1 || f[0].Allow != "approved by me (web)" {
				t.Errorf("recorded %+v", f)
			}
		})
	}
}

// A push does not add what upstream has. A line at the same place in upstream does not
// refuse the push, and the same line elsewhere does.
func TestOldLines(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"local", "ssh without version 2"} {
		for name, c := range map[string]struct {
			file, text string
			goes       bool
		}{
			"another line of the file is changed": {"old.txt", "a\nkey = " + awsKey + "\nchanged\n", true},
			"the line is moved in the file":       {"old.txt", "a\nb\nc\nkey = " + awsKey + "\n", true},
			"the line is changed":                 {"old.txt", "a\nkey  = " + awsKey + "\nb\n", false},
			"another of its kind is added":        {"old.txt", "a\nkey = " + awsKey + "\nkey = AKIAQYLPMN5HHHFPZXM3\n", false},
			"the line is copied to another file":  {"new.txt", "key = " + awsKey + "\n", false},
		} {
			t.Run(transport+", "+name, func(t *testing.T) {
				t.Parallel()
				up := newUpstreamRepo(t)
				git(t, up, "config", "uploadpack.allowFilter", "true")
				direct := t.TempDir() + "/d"
				git(t, up, "clone", "-q", up, direct)
				commitFile(t, direct, "old.txt", "a\nkey = "+awsKey+"\nb\n")
				git(t, direct, "push", "-q", "origin", "trunk")
				repo, cfg := transports[transport](t, up)
				cfg.Repos = []Repo{repo}
				_, url := newGate(t, cfg)
				w := cloneOf(t, url)
				commitFile(t, w, "other.txt", "x\n")
				commitFile(t, w, c.file, c.text)
				out, err := tryGit(t, w, "push", "origin", "trunk")
				// Protocol version 0 gives out no single file. Then a finding is refused
				// even if it is old.
				if goes := err == nil; goes != (c.goes && transport == "local") {
					t.Errorf("went on: %v\n%s", goes, out)
				}
			})
		}
	}
}
