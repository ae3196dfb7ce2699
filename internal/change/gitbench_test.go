package change

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// BenchmarkLandCommits lands 1,000 commits with 100 MB of objects. It reports the time as a
// multiple of that of a local git fetch of the same, which is measured in the same rounds.
func BenchmarkLandCommits(b *testing.B) {
	for _, form := range []string{"loose", "packed"} {
		b.Run(form, func(b *testing.B) {
			g := newGitWorld(b, nil)
			fill(b, g.in, 1000, 100<<10)
			if form == "packed" {
				gitIn(b, g.in, "repack", "-adq")
			}
			s := g.leave()
			var land, fetch time.Duration
			for b.Loop() {
				bare := realTemp(b) + "/fetch"
				gitIn(b, "/", "clone", "-q", "--no-hardlinks", g.ws, bare)
				began := time.Now()
				gitIn(b, bare, "fetch", "-q", "file://"+g.in, "+main:refs/heads/new")
				fetch += time.Since(began)
				began = time.Now()
				rep := g.land(s, LandOptions{})
				land += time.Since(began)
				if len(rep.Refs) != 1 || len(rep.Refs[0].Files) != 1000 || rep.Refs[0].Count != 1000 {
					b.Fatalf("%d references, %+v", len(rep.Refs), rep.Withheld)
				}
				_, err := Undo(b.Context(), s, UndoOptions{})
				must(b, err)
				gitIn(b, g.ws, "reflog", "expire", "--expire=now", "--all")
				gitIn(b, g.ws, "gc", "-q", "--prune=now")
				must(b, os.RemoveAll(bare))
			}
			b.ReportMetric(float64(land)/float64(fetch), "×fetch")
			b.ReportMetric(land.Seconds()/float64(b.N), "s/landing")
		})
	}
}

// fill makes n commits, each with a new file of size random bytes.
func fill(b *testing.B, dir string, n, size int) {
	b.Helper()
	rng := rand.New(rand.NewSource(1))
	buf := make([]byte, size)
	cmd := exec.Command("git", "fast-import", "--quiet")
	cmd.Dir = dir
	var in strings.Builder
	for i := range n {
		rng.Read(buf)
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter Ada <a@b> %d +0000\ndata 1\nx\n", i+1, 1700000000+i)
		if i == 0 {
			in.WriteString("from refs/heads/main^0\n")
		}
		fmt.Fprintf(&in, "M 100644 inline f%d\ndata %d\n%s\n", i, size, buf)
	}
	cmd.Stdin = strings.NewReader(in.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v %s", err, out)
	}
	if strings.HasSuffix(b.Name(), "loose") {
		packs := gitIn(b, dir, "rev-parse", "--git-path", "objects/pack")
		tmp := realTemp(b) + "/packs"
		must(b, os.Rename(dir+"/"+packs, tmp))
		must(b, os.Mkdir(dir+"/"+packs, 0o755))
		names, err := os.ReadDir(tmp)
		must(b, err)
		for _, e := range names {
			if strings.HasSuffix(e.Name(), ".pack") {
				f, err := os.Open(tmp + "/" + e.Name())
				must(b, err)
				cmd := exec.Command("git", "unpack-objects", "-q")
				cmd.Dir, cmd.Stdin = dir, f
				must(b, cmd.Run())
				must(b, f.Close())
			}
		}
	}
	gitIn(b, dir, "reset", "-q", "--hard", "main")
}
