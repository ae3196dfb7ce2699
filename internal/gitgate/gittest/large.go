package gittest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
)

// Large makes a bare repository whose packs have about so many megabytes. Half of it is
// text files with a history of changes, and half is files that do not compress.
func Large(t T, megabytes int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "large.git")
	run := func(in func(io.Writer), args ...string) {
		c := exec.CommandContext(t.Context(), "git", args...)
		c.Env = Env(nil)
		if in != nil {
			w, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			go func() { in(w); _ = w.Close() }()
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	run(nil, "init", "-q", "--bare", "-b", "trunk", dir)
	run(func(w io.Writer) { history(w, megabytes) }, "-C", dir, "fast-import", "--quiet")
	run(nil, "-C", dir, "repack", "-q", "-a", "-d")
	return dir
}

// history writes the input of fast-import.
func history(out io.Writer, megabytes int) {
	w := bufio.NewWriterSize(out, 1<<20)
	defer w.Flush()
	r := rand.New(rand.NewPCG(7, uint64(megabytes)))
	words := make([]string, 4000)
	for i := range words {
		b := make([]byte, 2+r.IntN(9))
		for j := range b {
			b[j] = "etaoinshrdlucmfwypvbgk"[r.IntN(22)]
		}
		words[i] = string(b)
	}
	text := func(n int) []byte {
		var b []byte
		for len(b) < n {
			b = append(b, words[r.IntN(len(words))]...)
			b = append(b, " \n\t(){};="[r.IntN(9)])
		}
		return b
	}
	noise := make([]byte, 1<<20)
	const commits = 50
	for i := range commits {
		fmt.Fprintf(w, "commit refs/heads/trunk\ncommitter A <a@example.org> %d +0000\ndata 7\nchange\n", 1_700_000_000+i)
		file := func(name string, b []byte) {
			fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n", name, len(b))
			_, _ = w.Write(b)
			_, _ = w.WriteString("\n")
		}
		for j := range megabytes / 2 * 100 / commits {
			file(fmt.Sprintf("src/d%d/f%d-%d.txt", j%20, i, j), text(22<<10))
		}
		for j := range max(megabytes/2/commits, 1) {
			for k := 0; k+8 <= len(noise); k += 8 {
				v := r.Uint64()
				for x := range 8 {
					noise[k+x] = byte(v >> (8 * x))
				}
			}
			file(fmt.Sprintf("data/n%d-%d.bin", i, j), noise)
		}
	}
}

// GoOn commits one small change on top of a branch, without a work tree, and returns its
// id.
func GoOn(t T, dir, branch string, n int) {
	t.Helper()
	c := exec.CommandContext(context.WithoutCancel(t.Context()), "git", "-C", dir, "fast-import", "--quiet")
	c.Env = Env(nil)
	w, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		text := fmt.Sprintf("change %d\n", n)
		fmt.Fprintf(w, "commit refs/heads/%s\ncommitter A <a@example.org> %d +0000\ndata 7\nchange\nfrom refs/heads/%s^0\nM 100644 inline small-%d.txt\ndata %d\n%s\n", branch, 1_800_000_000+n, branch, n, len(text), text)
		_ = w.Close()
	}()
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git fast-import: %v\n%s", err, out)
	}
}
