package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The tree that is cloned and unpacked: the size and shape of a middling
// project. The same bytes on every machine.
const (
	treeDirs    = 190
	filesPerDir = 20
)

// eachFile calls f with the tree's files, in order.
func eachFile(f func(path string, content []byte) error) error {
	r := rand.New(rand.NewPCG(1, 2))
	for d := range treeDirs {
		for i := range filesPerDir {
			var b bytes.Buffer
			for n := 500 + r.IntN(9000); b.Len() < n; {
				fmt.Fprintf(&b, "line %x of text that packs like source code\n", r.Uint64())
			}
			path := fmt.Sprintf("src/part%02d/unit%03d/file%02d.txt", d%19, d, i)
			if err := f(path, b.Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeTar writes the tree as an archive.
func writeTar(w io.Writer) error {
	t := tar.NewWriter(w)
	err := eachFile(func(path string, content []byte) error {
		return addFile(t, path, 0o644, content)
	})
	if err != nil {
		return err
	}
	return t.Close()
}

// writeImport writes the tree as one commit for git fast-import.
func writeImport(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprint(b, "commit refs/heads/main\ncommitter bench <bench@example.org> 1700000000 +0000\ndata 5\nbench\n")
	err := eachFile(func(path string, content []byte) error {
		fmt.Fprintf(b, "M 100644 inline %s\ndata %d\n%s\n", path, len(content), content)
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprint(b, "done\n")
	return b.Flush()
}

// goModule holds a program whose build compiles little more than the runtime.
var goModule = map[string]string{
	"module/go.mod":  "module example.org/small\n\ngo 1.26\n",
	"module/main.go": "package main\n\nimport \"errors\"\n\nfunc main() { println(errors.New(\"small\").Error()) }\n",
}

// writeFixtures fills the workspace.
func writeFixtures(ctx context.Context, ws string) error {
	for name, text := range goModule {
		path := filepath.Join(ws, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(ws, "tree.tar"))
	if err != nil {
		return err
	}
	if err := writeTar(f); err != nil {
		f.Close()
		return fmt.Errorf("write the archive: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := writePackages(filepath.Join(ws, "packages")); err != nil {
		return fmt.Errorf("write the npm packages: %w", err)
	}
	if err := writeRepository(ctx, filepath.Join(ws, "repo.git")); err != nil {
		return err
	}
	return errors.Join(writeTree(ctx, ws, "tree", time.Minute), writeTree(ctx, ws, "fresh", 0), fillGoCache(ctx, ws))
}

// npmDependencies is the number of packages that the installed one depends on.
const npmDependencies = 36

// writePackages writes packages for npm without scripts: small, and those that
// it depends on, 12 files each, as archives beside it.
func writePackages(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	wants := map[string]string{}
	for d := range npmDependencies {
		name := fmt.Sprintf("part%02d", d)
		path := filepath.Join(dir, name+".tgz")
		if err := writePackage(path, name, 12, nil); err != nil {
			return err
		}
		wants[name] = "file:" + path
	}
	return writePackage(filepath.Join(dir, "small.tgz"), "small", 12, wants)
}

func writePackage(path, name string, files int, wants map[string]string) error {
	manifest, err := json.Marshal(map[string]any{"name": name, "version": "1.0.0", "main": "lib/m0.js", "dependencies": wants})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	t := tar.NewWriter(z)
	err = addFile(t, "package/package.json", 0o644, manifest)
	for i := range files {
		if err == nil {
			err = addFile(t, fmt.Sprintf("package/lib/m%d.js", i), 0o644, fmt.Appendf(nil, "module.exports = %q\n", strings.Repeat("x", 100+131*i)))
		}
	}
	return errors.Join(err, t.Close(), z.Close(), f.Sync())
}

func addFile(t *tar.Writer, name string, mode int64, content []byte) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}

// writeTree is a work tree whose index agrees with its files, also after they
// got another owner: of the times, only those of contents count. The index is
// written so long after the files. What is as old as the index might have been
// changed after it, so that git reads it at each status: what a checkout leaves.
func writeTree(ctx context.Context, ws, name string, after time.Duration) error {
	tree := filepath.Join(ws, name)
	git := func(args ...string) error {
		c := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*"}, args...)...)
		c.Dir, c.Env = ws, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	if err := git("clone", "-q", "--no-hardlinks", "repo.git", name); err != nil {
		return err
	}
	for _, set := range [][2]string{{"core.checkStat", "minimal"}, {"core.trustctime", "false"}} {
		if err := git("-C", name, "config", set[0], set[1]); err != nil {
			return err
		}
	}
	past := time.Now().Add(-time.Hour).Truncate(time.Second)
	err := filepath.WalkDir(tree, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		return os.Chtimes(path, past, past)
	})
	if err != nil {
		return err
	}
	if err := git("-C", name, "status", "--porcelain"); err != nil {
		return err
	}
	written := past.Add(after)
	return os.Chtimes(filepath.Join(tree, ".git/index"), written, written)
}

func fillGoCache(ctx context.Context, ws string) error {
	tmp, err := os.MkdirTemp("", "carboy-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	argv := goBuild(filepath.Join(ws, "gocache"), tmp, tmp+"/small")
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = ws
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}

func writeRepository(ctx context.Context, dir string) error {
	env := append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	init := exec.CommandContext(ctx, "git", "init", "-q", "--bare", "-b", "main", dir)
	init.Env = env
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("git init: %w: %s", err, out)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeImport(w)) }() // ends when git closes its end
	defer r.Close()
	load := exec.CommandContext(ctx, "git", "-C", dir, "fast-import", "--quiet", "--done")
	load.Env, load.Stdin = env, r
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("git fast-import: %w: %s", err, out)
	}
	return nil
}
