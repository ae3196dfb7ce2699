// Command planted traces what programs look for in the directory in which somebody
// starts them, and which of it they run:
//
//	go run ./internal/tools/planted -root /var/tmp/planted
//
// As root, it unpacks the Debian packages of starts.tsv in that directory with root.sh, if
// nothing is there. Without network, as an ordinary user, it makes each start twice: in a directory
// of ordinary files, and in one where every protected name, and every name that the first
// start looked for, is planted. What payloads.tsv has for a name leaves a mark when
// something runs it. The result is internal/change/testdata/lookedfor.tsv.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
)

//go:embed starts.tsv
var startsText string

//go:embed payloads.tsv
var payloadsText string

const (
	user     = 1000
	patience = 3 * time.Minute // what a start leaves behind is ended then
	header   = "# What programs of Debian 12 look for where somebody starts them: package, version, start,\n" +
		"# name, and looked (asked whether it is there), opened, or executed (ran a planted file).\n" +
		"# Made by: go run ./internal/tools/planted -root /var/tmp/planted\n"
)

// ordinary files are in every directory: the starts name them.
var ordinary = []string{"README.md", "main.c", "main.js", "main.py", "main.rb", "main.sh", "main.yml", "src/main.rs"}

// controls are planted too. A program that touches them goes through all that is there.
var controls = []string{"zz-control", ".zz-control", "zz-control.d/x"}

// compiled files are not planted: a blank one ends the start.
var compiled = []string{".app", ".beam", ".boot", ".cmi", ".jar", ".so"}

// rows returns the lines of a table.
func rows(text string) (out [][]string) {
	for line := range strings.Lines(text) {
		if line[0] != '#' {
			out = append(out, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	return out
}

func main() {
	log.SetFlags(0)
	root := flag.String("root", "", "the directory of the Debian system")
	out := flag.String("out", "internal/change/testdata/lookedfor.tsv", "the table to write")
	only := flag.String("only", ".", "make the starts that match this regular expression")
	flag.Parse()
	if !filepath.IsAbs(*root) || os.Getuid() != 0 {
		log.Fatal("usage, as root: planted -root /DIRECTORY")
	}
	pkgs := []string{"internal/tools/planted/root.sh", *root}
	for _, s := range rows(startsText) {
		pkgs = append(pkgs, s[0])
	}
	if out, err := exec.Command("sh", slices.Compact(pkgs)...).CombinedOutput(); err != nil {
		log.Fatalf("%s\n%v", out, err)
	}
	match, plant := regexp.MustCompile(*only), payloads()
	var mu sync.Mutex
	var lines []string
	var all sync.WaitGroup
	several := make(chan bool, 16)
	for i, s := range rows(startsText) {
		if !match.MatchString(s[0] + " " + s[2]) {
			continue
		}
		several <- true
		all.Go(func() {
			defer func() { <-several }()
			r := &run{root: *root, n: i, setup: s[1], cmd: s[2]}
			found := r.both(plant)
			mu.Lock()
			defer mu.Unlock()
			start := strings.Join([]string{s[0], version(*root, s[0]), s[2]}, "\t")
			for name, state := range found {
				lines = append(lines, start+"\t"+name+"\t"+states[state])
			}
			if len(found) == 0 {
				lines = append(lines, start+"\t-\tnothing")
			}
			log.Printf("%d %s: %s: %d names", i, s[0], s[2], len(found))
		})
	}
	all.Wait()
	slices.Sort(lines)
	if err := os.WriteFile(*out, []byte(header+strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		log.Fatal(err)
	}
}

// version returns the version of a package, as its changelog has it.
func version(root, pkg string) string {
	for _, name := range []string{"changelog.Debian.gz", "changelog.gz"} {
		if b, err := exec.Command("zcat", root+"/usr/share/doc/"+pkg+"/"+name).Output(); err == nil {
			if m := regexp.MustCompile(`^\S+ \(([^)]+)\)`).FindSubmatch(b); m != nil {
				return string(m[1])
			}
		}
	}
	return "-"
}

// payloads returns what is planted: payloads.tsv, and a blank file for each protected name.
func payloads() map[string]string {
	out := map[string]string{}
	for _, f := range rows(payloadsText) {
		mark := "/marks/" + strings.ReplaceAll(f[len(f)-1], "/", "!")
		if len(f) == 2 {
			mark = "/marks/" + strings.ReplaceAll(f[0], "/", "!")
		}
		out[f[0]] = strings.NewReplacer(`\n`, "\n", "MARK", mark).Replace(f[1]) + "\n"
	}
	text, err := os.ReadFile("internal/change/protected.tsv")
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range rows(string(text)) {
		name := strings.ReplaceAll(f[1], "*", "x")
		out[name] = cmp.Or(out[name], blank(name))
	}
	return out
}

// blank returns the least content that most readers of such a name take.
func blank(name string) string {
	if strings.HasSuffix(name, ".json") {
		return "{}\n"
	}
	return "\n"
}

// A run makes one start, in the directories number n.
type run struct {
	root, setup, cmd string
	n                int
	base             string // within the system; the start is made in base/up/here
}

// both makes the start in both directories and returns the names that it looked for.
func (r *run) both(plant map[string]string) map[string]int {
	found := r.trace("a", nil)
	all := maps.Clone(plant)
	for name := range found {
		if !slices.Contains(compiled, path.Ext(name)) {
			all[name] = cmp.Or(plant[name], plant[strings.ToLower(name)], blank(name))
		}
	}
	for _, name := range controls {
		all[name] = "\n"
	}
	second, walked := r.trace("b", all), 0
	for _, name := range controls {
		walked = max(walked, second[name])
	}
	for name, state := range second {
		_, known := found[name]
		if known || state > walked {
			found[name] = max(found[name], state)
		}
	}
	maps.DeleteFunc(found, func(name string, _ int) bool {
		return strings.HasPrefix(name+"/", "planted/") || strings.HasPrefix(name, "zz-control") || slices.Contains(ordinary, name) || name == "src"
	})
	return found
}

// trace makes the start once and returns what it looked for in its directory and the two
// above, below them, and what left a mark.
func (r *run) trace(which string, plant map[string]string) map[string]int {
	r.base = fmt.Sprintf("/w/%d%s", r.n, which)
	here := r.base + "/up/here/"
	for _, d := range []string{"", ".trace", ".home", ".marks", ".tmp"} {
		os.RemoveAll(r.root + r.base + d)
		r.write(r.base+d+"/.x", "")
		os.Remove(r.root + r.base + d + "/.x")
	}
	r.write(r.base+".home/.zshrc", "\n")
	for _, name := range ordinary {
		r.write(here+name, "")
	}
	if r.setup != "-" {
		r.shell(r.setup, "setup")
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(plant))) { // x/y before x
		r.write(here+name, plant[name])
	}
	quoted := "'" + strings.ReplaceAll(r.cmd, "'", `'\''`) + "'"
	r.shell("exec strace -ff -y --seccomp-bpf -qqq -s 4096 -e trace=%file,fchdir,clone,clone3,fork,vfork -o "+r.base+".trace/t sh -c "+quoted, "said")
	seen := parse(r.root+r.base+".trace", r.base)
	marks, _ := os.ReadDir(r.root + r.base + ".marks")
	for _, m := range marks {
		mark := strings.ReplaceAll(m.Name(), "!", "/")
		for name := range seen {
			if strings.EqualFold(name, mark) {
				mark = name // as the program spells it
			}
		}
		seen[mark] = executed
	}
	return seen
}

// write makes a file of the user. What is there stays, unless there is content.
func (r *run) write(name, content string) {
	os.MkdirAll(r.root+path.Dir(name), 0o755)
	if _, err := os.Lstat(r.root + name); err != nil || strings.TrimSpace(content) != "" {
		os.WriteFile(r.root+name, []byte(content), 0o755)
	}
	for ; name != "/"; name = path.Dir(name) {
		os.Chown(r.root+name, user, user)
	}
}

// shell runs a shell command as the user, with a terminal and without network. What it
// says is kept beside the directory, for who wants to know why a start failed.
func (r *run) shell(cmd, kept string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	script := fmt.Sprintf("mount --bind %[1]s.marks /marks && mount --bind %[1]s.tmp /tmp && cd %[1]s/up/here && exec setpriv --pdeathsig=KILL --reuid=%[2]d --regid=%[2]d --clear-groups env -i HOME=%[1]s.home USER=dev SHELL=/bin/bash TERM=xterm PAGER=cat LANG=C.UTF-8 JAVA_HOME=/usr/lib/jvm/default-java PATH=/usr/bin:/bin:/usr/games sh -c \"$1\"", r.base, user)
	c := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--root="+r.root, "--mount-proc", "sh", "-c", script, "sh", cmd)
	terminal, tty, err := pty.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer terminal.Close()
	pty.Setsize(terminal, &pty.Winsize{Rows: 24, Cols: 80})
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = c.Start()
	tty.Close()
	said, create := os.Create(r.root + r.base + "." + kept)
	if err != nil || create != nil {
		log.Fatal(err, create)
	}
	defer said.Close()
	io.Copy(said, terminal)
	fmt.Fprintln(said, c.Wait())
}
