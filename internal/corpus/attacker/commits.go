package attacker

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" // for git's object names
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Repositories names the git repositories in which commits leaves its work.
var Repositories = []string{"honest", "hidden", "forged", "references", "harmful", "crowd"}

// Git writes to a git directory as git does, and as it would not. Without a Dir it collects
// the entries of a pack. Its first error stays.
type Git struct {
	Dir     string
	Err     error
	entries []string
}

// Object stores an object and returns its name.
func (g *Git) Object(kind, body string) string {
	raw := fmt.Sprintf("%s %d\x00%s", kind, len(body), body)
	sum := sha1.Sum([]byte(raw))
	id := hex.EncodeToString(sum[:])
	if g.Dir == "" {
		g.entries = append(g.entries, entry(packKinds[kind], len(body), "", body))
	} else {
		g.objectAs(id, raw)
	}
	return id
}

// objectAs stores an object under any name.
func (g *Git) objectAs(id, raw string) {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, err := z.Write([]byte(raw))
	g.fail(err, z.Close())
	g.File("objects/"+id[:2]+"/"+id[2:], b.String())
}

// Tree stores a tree of entries "MODE NAME=ID" and returns its name.
func (g *Git) Tree(entries ...string) string {
	var b strings.Builder
	for _, e := range entries {
		name, id, _ := strings.Cut(e, "=")
		raw, err := hex.DecodeString(id)
		g.fail(err)
		b.WriteString(name + "\x00" + string(raw))
	}
	return g.Object("tree", b.String())
}

// Commit stores a commit and returns its name. An empty parent is none.
func (g *Git) Commit(tree, parent, author, subject string) string {
	if parent != "" {
		parent = "parent " + parent + "\n"
	}
	const when = " <a@b.test> 1700000000 +0000\n"
	return g.Object("commit", "tree "+tree+"\n"+parent+"author "+author+when+"committer A"+when+"\n"+subject+"\n")
}

// File writes a file of the git directory.
func (g *Git) File(name, text string) {
	path := filepath.Join(g.Dir, name)
	g.fail(os.MkdirAll(filepath.Dir(path), 0o755))
	os.Remove(path) // objects are read-only, as a rule
	g.fail(os.WriteFile(path, []byte(text), 0o644))
}

func (g *Git) fail(errs ...error) { g.Err = errors.Join(append(errs, g.Err)...) }

// commits leaves a hostile change in each of the Repositories below the current directory,
// and an honest one in the first.
func commits([]string) error {
	for _, name := range Repositories {
		g := &Git{Dir: name + "/.git"}
		b, err := os.ReadFile(g.Dir + "/refs/heads/main")
		if err != nil {
			return cannot("%v", err)
		}
		tip := strings.TrimSpace(string(b))
		old, fine, evil := "100644 a.txt="+g.Object("blob", "one\n"), g.Object("blob", "fine\n"), g.Object("blob", Owned)
		tree := g.Tree(old, "100644 fine.txt="+fine)
		author, subject := "A", "a change"
		g.fail(os.WriteFile(name+"/fine.txt", []byte("fine\n"), 0o644))
		switch name {
		case "honest":
			author, subject = "A"+strings.NewReplacer("\n", "", "<", "", ">", "").Replace(escapeText), "honest work "+escapeText
		case "hidden":
			tree = g.Tree("100644 .envrc="+evil, old, "100644 fine.txt="+fine)
		case "forged":
			wanted := g.Object("blob", "what was reviewed\n")
			tree = g.Tree(old, "100644 b.txt="+wanted, "100644 fine.txt="+fine)
			g.objectAs(wanted, fmt.Sprintf("blob %d\x00%s", len(Owned), Owned))
			g.objectAs(strings.TrimPrefix(old, "100644 a.txt="), fmt.Sprintf("blob %d\x00%s", len(Owned), Owned))
			g.File("objects/pack/pack-"+tip+".pack", "PACK\x00\x00\x00\x02")
			g.File("objects/pack/pack-"+tip+".idx", "forged")
		case "references":
			bad := g.Commit(g.Tree("100644 a.txt="+evil), tip, "A", "bad")
			for _, ref := range []string{"refs/replace/" + tip, "refs/stash", "refs/tags/v1", "refs/heads/side", "refs/notes/commits"} {
				g.File(ref, bad+"\n")
			}
			g.File("packed-refs", bad+" refs/heads/packed\n"+bad+" refs/replace/"+fine+"\n")
			g.File("info/grafts", tip+" "+bad+"\n")
			g.File("shallow", tip+"\n")
			g.File("objects/info/alternates", "/etc\n")
			g.File("hooks/post-checkout", Owned)
			g.File("config", "[core]\n\tfsmonitor = /bin/false\n")
		case "harmful":
			tree = g.Tree("40000 ..="+g.Tree("100644 owned="+evil), old, "100644 fine.txt="+fine)
		case "crowd":
			tree = g.Tree("100644 Makefile="+evil, old, "100644 fine.txt="+fine)
			var packed strings.Builder
			for i := range 300 {
				fmt.Fprintf(&packed, "%s refs/heads/a%03d\n", strings.Repeat("0a", 20), i)
			}
			g.File("packed-refs", packed.String())
			g.File("HEAD", "ref: refs/heads/a000\n")
		}
		g.File("refs/heads/main", g.Commit(tree, tip, author, subject)+"\n")
		if g.Err != nil {
			return cannot("%v", g.Err)
		}
	}
	fmt.Println("committed")
	return nil
}
